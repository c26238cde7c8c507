//! What the TLS of each store needs: the certificates that it trusts, and an implementation of cryptography.

#[cfg(any(feature = "mysql-tls", feature = "redis-tls"))]
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The certificates of a PEM text, or those of the system.
pub(super) fn trusted(pem: Option<&[u8]>) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = match pem {
        Some(pem) => CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("the given certificates are no PEM text: {error}"))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    match (certificates.is_empty(), pem) {
        (false, _) => Ok(certificates),
        (true, Some(_)) => Err("the given PEM text has no certificate".to_owned()),
        (true, None) => Err(
            "the system has no trusted certificates: install them, or give those of the server"
                .to_owned(),
        ),
    }
}

/// The clients of Redis and MySQL use the implementation of the process. If the program has installed none, this installs ring's: with
/// features for several implementations, rustls would panic otherwise.
#[cfg(any(feature = "mysql-tls", feature = "redis-tls"))]
pub(super) fn ensure_provider() {
    if CryptoProvider::get_default().is_none() {
        let _installed_meanwhile = ring::default_provider().install_default();
    }
}
