//! A store in PostgreSQL.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::poll_fn;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsConnect};
use tokio_postgres::{Config, Socket};

use super::sql::table::{CallAwaited, SqlServer, call, in_task, runtime};
use super::sql::{page, rows};
use super::{KeyPage, ReleaseListener, Store, StoreFuture};
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use server::{Connector, ID, Messages, PostgresServer, SCHEMA, follow, message, unknown};

#[cfg(any(test, fuzzing))]
pub(super) use server::fuzzed;

mod server;

/// A store in PostgreSQL 11 or later. Clones share the store.
///
/// Time is that of the server's clock. A call takes one round trip if no other process has written the key since this process did,
/// or if the call changes nothing, such as a denial; otherwise two. A call of one round trip may be decided as of an instant one
/// round trip earlier: by the clocks of the callers, a span of a rate may be shorter by that. Its leases then end that much later
/// on the server. If several processes write a key at the same time, a call locks the row of the key. The cache of known keys takes
/// 64 MiB at most.
///
/// The first call makes a connection, which is replaced when it breaks. Many concurrent calls have up to three more connections,
/// calls for contended keys up to four, and listeners one. Calls must be made in a tokio runtime with `enable_all`.
///
/// Released places are announced by `NOTIFY`. Keys of about 4,000 bytes and more are too long for that, so their waiters poll.
///
/// For a token bucket or a throttle, a [settlement](crate::Permit::settle) below the charge refunds nothing, because past grants
/// are not kept. Each call rewrites a sliding log, with about ten bytes for each entry.
///
/// # Examples
///
/// ```no_run
/// use tollgate::store::PostgresStore;
///
/// let store = PostgresStore::open("postgres://limits@db.example/limits")?;
/// # Ok::<(), tollgate::store::StoreError>(())
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    server: Arc<PostgresServer>,
}

/// Options for opening a [`PostgresStore`].
///
/// ```no_run
/// use tollgate::store::PostgresStoreOptions;
///
/// let store = PostgresStoreOptions::new().create_tables(false).open("postgres://limits@db.example/limits")?;
/// # Ok::<(), tollgate::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct PostgresStoreOptions {
    creates_tables: bool,
    timeout: Duration,
    #[cfg(feature = "postgres-tls")]
    root_certificates: Option<Vec<u8>>,
}

impl Default for PostgresStoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PostgresStoreOptions {
    /// The default options: missing tables are created, and the timeout is 5 seconds.
    pub const fn new() -> Self {
        Self {
            creates_tables: true,
            timeout: Duration::from_secs(5),
            #[cfg(feature = "postgres-tls")]
            root_certificates: None,
        }
    }

    setters! { const:
        /// Whether missing tables are created. Otherwise [`PostgresStore::schema`] must have been run.
        pub create_tables(creates_tables: bool) => creates_tables = creates_tables;

        /// The longest time to make a connection, and to wait for an answer: 5 seconds by default. After that, the connection is
        /// given up, and another one is made. Statements that were sent may still be carried out.
        pub timeout(timeout: Duration) => timeout = timeout;
    }

    /// Trusts the certificates of this PEM text, and not those of the system. The URL must have `sslmode=require`.
    ///
    /// ```no_run
    /// use tollgate::store::PostgresStoreOptions;
    ///
    /// let authority = std::fs::read("ca.pem")?;
    /// let url = "postgres://limits@db.example/limits?sslmode=require";
    /// let store = PostgresStoreOptions::new().root_certificates(authority).open(url)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// A store at this URL, or of these [`key=value` pairs](Config). It does not connect yet.
    ///
    /// With `sslmode=require` and the feature `postgres-tls`, connections use TLS, and the server's certificate and its host name are
    /// checked. Other modes do not use TLS.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the text is not such an address, if it requires TLS without the feature `postgres-tls`, or if
    /// there are no certificates to trust.
    pub fn open(self, url: &str) -> Result<PostgresStore, StoreError> {
        let failed = |error: Box<dyn Error + Send + Sync>| StoreError::unreachable(NAME, error);
        let config: Config = url
            .parse()
            .map_err(|error: tokio_postgres::Error| failed(error.into()))?;
        let requires_tls = config.get_ssl_mode() == SslMode::Require;
        #[cfg(feature = "postgres-tls")]
        if requires_tls {
            let tls = tls(self.root_certificates.as_deref()).map_err(failed)?;
            return Ok(self.open_with(config, tls));
        } else if self.root_certificates.is_some() {
            return Err(failed(
                "certificates are given, but TLS is not required: add sslmode=require to the URL"
                    .into(),
            ));
        }
        if requires_tls {
            return Err(failed(
                "sslmode=require needs the feature postgres-tls of tollgate".into(),
            ));
        }
        Ok(self.open_with(config, NoTls))
    }

    /// A store at this address, with TLS from one of the crates for tokio-postgres. It does not connect yet.
    pub fn open_with<T>(self, config: Config, tls: T) -> PostgresStore
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let sql = SqlServer::new(name(&config), self.creates_tables, self.timeout);
        let connector: Connector = Arc::new(move || {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, mut connection) = config.connect(tls).await?;
                let messages = poll_fn(move |context| connection.poll_message(context));
                Ok((client, Box::pin(messages) as Messages))
            })
        });
        let server = PostgresServer::new(sql, connector);
        PostgresStore {
            server: Arc::new(server),
        }
    }
}

const NAME: &str = "PostgreSQL";

/// TLS that checks the server by the certificates of this PEM text, or by those of the system.
#[cfg(feature = "postgres-tls")]
fn tls(
    pem: Option<&[u8]>,
) -> Result<tokio_postgres_rustls::MakeRustlsConnect, Box<dyn Error + Send + Sync>> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(super::tls::trusted(pem)?);
    if added == 0 {
        return Err("none of the certificates can be read".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_postgres_rustls::MakeRustlsConnect::new(config))
}

/// The name of the store, without user and password.
fn name(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        #[cfg(unix)]
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "?".to_owned(),
    };
    let port = config.get_ports().first().unwrap_or(&5432);
    format!(
        "{NAME} at {host}:{port}/{}",
        config.get_dbname().unwrap_or_default()
    )
}

impl PostgresStore {
    /// A store at this URL, with the default [options](PostgresStoreOptions). It does not connect yet.
    ///
    /// See the [type's example](PostgresStore#examples).
    ///
    /// # Errors
    ///
    /// Those of [`PostgresStoreOptions::open`].
    pub fn open(url: &str) -> Result<Self, StoreError> {
        PostgresStoreOptions::new().open(url)
    }

    /// The statements that create the tables. They change nothing if the tables exist.
    ///
    /// ```
    /// println!("{}", tollgate::store::PostgresStore::schema());
    /// ```
    #[must_use]
    pub const fn schema() -> &'static str {
        SCHEMA
    }
}

debug_fields! { PostgresStore, |store| name = store.server.sql.name() }

impl Store for PostgresStore {
    fn name(&self) -> String {
        self.server.sql.name().to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.server.sql.rules.supports(policy)
    }

    fn call(&self, of: Call) -> StoreFuture<Reply> {
        let (server, caller) = (Arc::clone(&self.server), Arc::new(()));
        Box::pin(async move {
            runtime(server.sql.name())?;
            call(server, of, CallAwaited::by(&caller)).await
        })
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        let PostgresServer {
            sql,
            connector,
            served,
            ..
        } = &*self.server;
        let (connector, known, timeout) =
            (Arc::clone(connector), Arc::clone(&sql.known), sql.timeout);
        served.add(limiter, listener, move |served| {
            follow(Arc::clone(&connector), timeout, Arc::clone(&known), served)
        })
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        let limiter = Arc::clone(limiter);
        in_task(&self.server, async move |server, _| {
            // The ids of a limiter begin with the same 32 bytes.
            let select = "SELECT id, k FROM tollgate_keys WHERE id > coalesce($2, sha256($1)) \
                          AND id <= sha256($1) || decode(repeat('ff', 32), 'hex') \
                          AND expires > (extract(epoch FROM clock_timestamp()) * 1000000)::int8 ORDER BY id LIMIT $3";
            let max = max.max(1);
            let (limiter, from) = (limiter.as_bytes(), &from);
            let found = server.ask(|connection| async move {
                connection
                    .query(select, &[&limiter, from, &rows(max)])
                    .await
            });
            let found = found.await?;
            let keys = found.iter().map(|row| (row.get(0), row.get(1)));
            Ok(page(keys.collect(), max))
        })
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        in_task(&self.server, async move |server, _| {
            let connection = server.connection().await?;
            let resets = async {
                let delete = format!("DELETE FROM tollgate_keys WHERE id = {ID}");
                let id = [&scope.limiter.as_bytes() as _, &&scope.key[..] as _];
                connection.execute(&delete, &id).await?;
                if let Some(message) = message(&scope, None, None) {
                    let notify = "SELECT pg_notify('tollgate', $1)";
                    connection.execute(notify, &[&message]).await?;
                }
                Ok(())
            };
            resets.await.map_err(unknown(server.sql.name()))
        })
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        let limiter = Arc::clone(limiter);
        in_task(&self.server, async move |server, _| {
            // Unlike the list of `IN`, an array is evaluated once. A plan that evaluates the list several times would delete more
            // than `max` rows.
            let delete = "DELETE FROM tollgate_keys WHERE id = ANY(ARRAY(SELECT id FROM tollgate_keys WHERE id > sha256($1) \
                          AND id <= sha256($1) || decode(repeat('ff', 32), 'hex') \
                          AND expires <= (extract(epoch FROM clock_timestamp()) * 1000000)::int8 LIMIT $2 FOR UPDATE SKIP LOCKED))";
            let connection = server.connection().await?;
            let deleted = connection
                .execute(delete, &[&limiter.as_bytes(), &rows(max)])
                .await;
            deleted.map_err(unknown(server.sql.name()))
        })
    }
}
