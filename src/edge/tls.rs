//! TLS 1.3 between keys: the handshake proves that the other side has the private key of what it shows, and a
//! pinned fingerprint alone decides who that is. Names, dates and authorities are never looked at.
//!
//! Invariants: the provider is passed explicitly; nothing below TLS 1.3; no early data; no resumption, which would
//! skip the look at the key.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use quinn::crypto::rustls::{HandshakeData, NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::identity::{Fingerprint, Identity};

/// Name of the protocol; any change of a byte on the wire is a new one.
pub(super) const ALPN: &[u8] = b"tiebreak/1";
/// Name of the protocol by which keys that are not pinned yet ask to be.
pub(super) const JOIN_ALPN: &[u8] = b"tiebreak-join/1";
/// Stands where TLS wants a host name. It is not sent and not compared.
pub(super) const SERVER_NAME: &str = "tiebreak";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// How this node answers: it asks for a key and takes any whose signature is good. Whether that key is pinned is
/// decided right after the handshake, when the reason for a refusal can still be told to the one refused.
pub(super) fn server(identity: &Identity, speaks: &[&[u8]]) -> Result<rustls::ServerConfig, Error> {
    let provider = provider();
    let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = speaks.iter().map(|name| name.to_vec()).collect();
    config.max_early_data_size = 0;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// How this node dials: it shows its key, and goes no further than the handshake with a key that is not pinned.
pub(super) fn client(
    identity: &Identity,
    expected: Arc<Expected>,
    speaks: &[u8],
) -> Result<rustls::ClientConfig, Error> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(expected)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = vec![speaks.to_vec()];
    config.enable_sni = false;
    config.enable_early_data = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The same for QUIC.
pub(super) fn quic_server(
    config: rustls::ServerConfig,
) -> Result<Arc<QuicServerConfig>, NoInitialCipherSuite> {
    QuicServerConfig::try_from(config).map(Arc::new)
}

/// The same for QUIC.
pub(super) fn quic_client(
    config: rustls::ClientConfig,
) -> Result<Arc<QuicClientConfig>, NoInitialCipherSuite> {
    QuicClientConfig::try_from(config).map(Arc::new)
}

/// The fingerprint of the key that the other side proved to have.
pub(super) fn proven(connection: &quinn::Connection) -> Option<Fingerprint> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Fingerprint::of(chain.first()?).ok()
}

/// Whether a connection was made in order to join.
pub(super) fn joins(connection: &quinn::Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.and_then(|data| data.protocol).is_some_and(|name| name == JOIN_ALPN)
}

fn no_tls12() -> Error {
    Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired)
}

/// Takes any key that signs the handshake.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Fingerprint::of(certificate).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Takes one of the expected keys, and remembers which one it was shown.
#[derive(Debug)]
pub(super) struct Expected {
    pins: BTreeSet<Fingerprint>,
    shown: OnceLock<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    pub(super) fn any_of(pins: &[Fingerprint]) -> Arc<Expected> {
        Arc::new(Expected {
            pins: pins.iter().copied().collect(),
            shown: OnceLock::new(),
            algorithms: provider().signature_verification_algorithms,
        })
    }

    /// The key that was shown instead of an expected one.
    pub(super) fn stranger(&self) -> Option<Fingerprint> {
        self.shown.get().copied().filter(|shown| !self.pins.contains(shown))
    }
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Fingerprint::of(certificate)?;
        let _ = self.shown.set(shown);
        if self.pins.contains(&shown) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
