//! The users: an SQLite database has their tokens and their plans.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use tollgate::layers::{HeaderKey, Identity as _};

use crate::answers::problem;
use crate::plans::Plan;

/// How long an instance caches the row of a token. A change of plan takes effect within this time.
const REMEMBERED: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) plan: Plan,
}

/// The users of the example, with their tokens. (A real service would keep a hash of each token.)
pub(crate) fn examples() -> Vec<(String, User)> {
    let counted = [(Plan::Free, 3), (Plan::Pro, 2), (Plan::Enterprise, 1)];
    let names = counted
        .into_iter()
        .flat_map(|(plan, count)| (1..=count).map(move |nth| (format!("{plan}-{nth}"), plan)));
    (1..)
        .zip(names)
        .map(|(id, (name, plan))| (format!("token-of-{name}"), User { id, name, plan }))
        .collect()
}

/// Creates the database.
pub(crate) fn create(path: &Path) -> rusqlite::Result<()> {
    let mut database = Connection::open(path)?;
    let transaction = database.transaction()?;
    transaction.execute(
        "CREATE TABLE users (token TEXT PRIMARY KEY, id INTEGER NOT NULL UNIQUE, name TEXT NOT NULL, plan TEXT NOT NULL)",
        (),
    )?;
    for (token, user) in examples() {
        transaction.execute(
            "INSERT INTO users VALUES (?, ?, ?, ?)",
            (token, user.id, user.name, user.plan.name()),
        )?;
    }
    transaction.commit()
}

/// Finds users by their tokens.
#[derive(Clone)]
pub(crate) struct Users {
    shared: Arc<Shared>,
}

struct Shared {
    database: Mutex<Connection>,
    /// Holds only tokens that exist, so that guesses do not fill it.
    known: Mutex<HashMap<String, (User, Instant)>>,
}

impl Users {
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        Ok(Self {
            shared: Arc::new(Shared {
                database: Mutex::new(database),
                known: Mutex::default(),
            }),
        })
    }

    async fn by_token(
        &self,
        token: String,
    ) -> Result<Option<User>, Box<dyn std::error::Error + Send + Sync>> {
        if let Some((user, until)) = lock(&self.shared.known).get(&token)
            && Instant::now() < *until
        {
            return Ok(Some(user.clone()));
        }
        let shared = Arc::clone(&self.shared);
        let look_up = move || {
            let user = shared.look_up(&token)?;
            let mut known = lock(&shared.known);
            match &user {
                Some(user) => known.insert(token, (user.clone(), Instant::now() + REMEMBERED)),
                None => known.remove(&token),
            };
            Ok(user)
        };
        tokio::task::spawn_blocking(look_up).await?
    }
}

impl Shared {
    fn look_up(&self, token: &str) -> Result<Option<User>, rusqlite::Error> {
        let user = |row: &rusqlite::Row<'_>| {
            Ok(User {
                id: row.get(0)?,
                name: row.get(1)?,
                plan: row.get(2)?,
            })
        };
        lock(&self.database)
            .query_row(
                "SELECT id, name, plan FROM users WHERE token = ?",
                [token],
                user,
            )
            .optional()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets users through, and puts each into the extensions of their request.
pub(crate) async fn authenticate(
    State(users): State<Users>,
    mut request: Request,
    next: Next,
) -> Response {
    let found = match HeaderKey::bearer().identify(&request) {
        Ok(token) => users.by_token(token).await,
        Err(_) => Ok(None),
    };
    match found {
        Ok(Some(user)) => {
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Ok(None) => {
            let mut response = problem(
                StatusCode::UNAUTHORIZED,
                None,
                "unknown_token",
                "send `Authorization: Bearer` and your token",
            );
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response.map(Into::into)
        }
        Err(error) => {
            eprintln!("cannot look up a user: {error}");
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                None,
                "users_unavailable",
                "try again",
            )
            .map(Into::into)
        }
    }
}

/// The user that [`authenticate`] has found.
pub(crate) fn user_of(request: &Request) -> Option<User> {
    request.extensions().get().cloned()
}
