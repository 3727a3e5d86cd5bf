//! The UDP sockets of a node, over which it both dials and listens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use ring::{hkdf, hmac};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use super::connection::Connection;
use super::door::{Door, Load, Stranger};
use super::error::CloseCode;
use super::ids::Ids;
use super::pins::Pins;
use super::tally::Tally;
use crate::edge::identity::Identity;
use crate::edge::tls::{self, Expected};
use crate::limits::{
    ACCEPT_QUEUE_MAX, ASK_PATIENCE_MAX, DATAGRAM_BUFFER_BYTES_MAX, DIAL_TIMEOUT, GOODBYE_TIMEOUT,
    HANDSHAKE_BUFFER_BYTES_MAX, HANDSHAKE_BUFFERS_BYTES_MAX, HANDSHAKES_MAX, IDLE_KEEP_ALIVES, JOINS_MAX,
    KEEP_ALIVE_DEFAULT, MESSAGE_BYTES_MAX, STREAMS_PER_CONNECTION_MAX,
};

/// How often an idle connection says that it is there, and how long silence is taken for nothing. Neither is a
/// failure detector: leases have timers of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Between two keep-alives. Only the side that dialled sends them: it is the one that may sit behind a NAT.
    pub keep_alive: Duration,
    /// Silence after which a connection is given up.
    pub idle: Duration,
    /// Silence after which a handshake with one address is given up.
    pub handshake: Duration,
}

impl Timing {
    /// The given keep-alive, and as many of them missed as end a connection.
    pub fn of(keep_alive: Duration) -> Timing {
        Timing { keep_alive, idle: keep_alive * IDLE_KEEP_ALIVES, handshake: DIAL_TIMEOUT }
    }

    /// Waits for others as long as a lease lasts: with a node that is far away nothing shorter decides.
    pub fn as_patient_as(self, lease: Duration) -> Timing {
        Timing { handshake: lease.clamp(DIAL_TIMEOUT, ASK_PATIENCE_MAX), ..self }
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing::of(KEEP_ALIVE_DEFAULT)
    }
}

/// Why no endpoint could be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on UDP {0}: {1}; check `listen`: the address has to belong to this machine and the port \
         must not be in use"
    )]
    Address(SocketAddr, #[source] io::Error),
    /// The key does not make a TLS configuration.
    #[error("cannot set up TLS with this node's key: {0}")]
    Tls(String),
}

/// The sockets of one node. Clones share them; when the last one is dropped, every connection is closed.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({:?})", self.local_addresses())
    }
}

struct Inner {
    sockets: Vec<quinn::Endpoint>,
    /// It may change.
    identity: std::sync::Mutex<Identity>,
    pins: Pins,
    tally: Arc<Tally>,
    timing: Timing,
    accepted: Mutex<mpsc::Receiver<Connection>>,
    /// Connections for joining.
    strangers: Mutex<mpsc::Receiver<Stranger>>,
    /// The protocol that it dials with, and those that it answers to, if it listens.
    dials: &'static [u8],
    answers: Option<&'static [&'static [u8]]>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for socket in &self.sockets {
            socket.close(CloseCode::LEAVING.wire(), b"the node is leaving");
        }
    }
}

impl Endpoint {
    /// Opens one socket for each address and listens there for nodes whose keys are `pins`. `[::]` takes IPv4 as
    /// well, unless the list has an IPv4 address with the same port. With no address the node only dials.
    ///
    /// Has to be called inside a Tokio runtime.
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub fn bind(
        identity: &Identity,
        listen: &[SocketAddr],
        pins: Pins,
        timing: Timing,
    ) -> Result<Endpoint, BindError> {
        Endpoint::bind_under(identity, listen, pins, timing, Load::default())
    }

    /// The same, and takes connections for joining as well: [`Endpoint::accept_stranger`].
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub fn bind_open(
        identity: &Identity,
        listen: &[SocketAddr],
        pins: Pins,
        timing: Timing,
    ) -> Result<Endpoint, BindError> {
        let speaks = Speaks { server: &[tls::ALPN, tls::JOIN_ALPN], client: tls::ALPN };
        Endpoint::bind_as(identity, listen, pins, timing, Load::default(), speaks)
    }

    /// One that only dials, in order to join.
    ///
    /// # Errors
    /// If there is no socket.
    pub fn joining(identity: &Identity) -> Result<Endpoint, BindError> {
        let speaks = Speaks { server: &[], client: tls::JOIN_ALPN };
        Endpoint::bind_as(identity, &[], Pins::default(), Timing::default(), Load::default(), speaks)
    }

    pub(super) fn bind_under(
        identity: &Identity,
        listen: &[SocketAddr],
        pins: Pins,
        timing: Timing,
        load: Load,
    ) -> Result<Endpoint, BindError> {
        let speaks = Speaks { server: &[tls::ALPN], client: tls::ALPN };
        Endpoint::bind_as(identity, listen, pins, timing, load, speaks)
    }

    fn bind_as(
        identity: &Identity,
        listen: &[SocketAddr],
        pins: Pins,
        timing: Timing,
        load: Load,
        speaks: Speaks,
    ) -> Result<Endpoint, BindError> {
        let server = server_config(identity, timing, speaks.server)?;
        let (joins, strangers) = mpsc::channel(JOINS_MAX);
        let (give, accepted) = mpsc::channel(ACCEPT_QUEUE_MAX);
        let tally = Arc::new(Tally::default());
        let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))];
        let mut sockets = Vec::new();
        for address in if listen.is_empty() { &any } else { listen } {
            let alone = !listen.iter().any(|other| other.is_ipv4() && other.port() == address.port());
            let failed = |error| BindError::Address(*address, error);
            let socket = open(*address, alone).map_err(failed)?;
            let server = (!listen.is_empty()).then(|| server.clone());
            let runtime = Arc::new(quinn::TokioRuntime);
            sockets.push(
                quinn::Endpoint::new(endpoint_config(identity), server, socket, runtime).map_err(failed)?,
            );
        }
        if !listen.is_empty() {
            let door = Door::new(load, pins.clone(), tally.clone(), give, joins);
            for socket in &sockets {
                tokio::spawn(door.clone().watch(socket.clone()));
            }
        }
        let (identity, accepted) = (std::sync::Mutex::new(identity.clone()), Mutex::new(accepted));
        let (strangers, dials) = (Mutex::new(strangers), speaks.client);
        let answers = (!listen.is_empty()).then_some(speaks.server);
        let inner = Inner { sockets, identity, pins, tally, timing, accepted, strangers, dials, answers };
        Ok(Endpoint(Arc::new(inner)))
    }

    /// The next connection of a node whose key is pinned; `None` once the endpoint is shut down or only dials.
    pub async fn accept(&self) -> Option<Connection> {
        self.0.accepted.lock().await.recv().await
    }

    /// Shows another key on every connection that is made from now on; those that exist stay.
    ///
    /// # Errors
    /// If the key does not make a TLS configuration; the earlier one stays.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), BindError> {
        if let Some(speaks) = self.0.answers {
            let config = server_config(identity, self.0.timing, speaks)?;
            for socket in &self.0.sockets {
                socket.set_server_config(Some(config.clone()));
            }
        }
        *self.0.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity.clone();
        Ok(())
    }

    /// The next connection of a key that asks to be pinned. It has proved to have the key, and nothing else.
    pub async fn accept_stranger(&self) -> Option<Stranger> {
        self.0.strangers.lock().await.recv().await
    }

    /// The addresses that are listened on, with the ports that the system chose for port 0.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.0.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// The keys that may speak here.
    pub fn pins(&self) -> &Pins {
        &self.0.pins
    }

    /// What has happened here since the start, by its name.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.0.tally
    }

    /// Closes every connection with that reason, accepts no more, and waits for a bounded time until the other
    /// sides can know. Without it they would keep ghosts until their idle time-out.
    pub async fn shutdown(&self, reason: &str) {
        for socket in &self.0.sockets {
            socket.close(CloseCode::LEAVING.wire(), reason.as_bytes());
        }
        let quiet = async {
            for socket in &self.0.sockets {
                socket.wait_idle().await;
            }
        };
        if timeout(GOODBYE_TIMEOUT, quiet).await.is_err() {
            tracing::debug!("some connections did not end in time");
        }
    }

    pub(super) fn timing(&self) -> Timing {
        self.0.timing
    }

    /// The socket that can send to an address.
    pub(super) fn socket_for(&self, to: SocketAddr) -> Option<&quinn::Endpoint> {
        let fits = |socket: &&quinn::Endpoint, exact: bool| match socket.local_addr() {
            Ok(SocketAddr::V4(_)) => to.is_ipv4(),
            Ok(SocketAddr::V6(local)) => to.is_ipv6() || (!exact && local.ip().is_unspecified()),
            Err(_) => false,
        };
        let sockets = || self.0.sockets.iter();
        sockets().find(|socket| fits(socket, true)).or_else(|| sockets().find(|socket| fits(socket, false)))
    }

    pub(super) fn client_config(&self, expected: Arc<Expected>) -> Result<quinn::ClientConfig, String> {
        let identity = self.0.identity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tls = tls::client(&identity, expected, self.0.dials).map_err(|error| error.to_string())?;
        let tls = tls::quic_client(tls).map_err(|error| error.to_string())?;
        let mut config = quinn::ClientConfig::new(tls);
        let mut transport = transport_config(self.0.timing);
        transport.keep_alive_interval(Some(self.0.timing.keep_alive));
        config.transport_config(Arc::new(transport));
        config.token_store(Arc::new(quinn::NoneTokenStore));
        Ok(config)
    }
}

/// Names of the protocols that an endpoint answers to, and of the one that it dials with.
struct Speaks {
    server: &'static [&'static [u8]],
    client: &'static [u8],
}

/// A process that comes back with the same key recognises the connections of its earlier life and resets them at
/// once. Both secrets are needed: quinn answers only to connection ids that its generator recognises.
fn endpoint_config(identity: &Identity) -> EndpointConfig {
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &identity.secret::<64>("stateless reset"));
    let ids = Ids::of(&identity.secret("connection ids"));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(ids.clone()));
    // Each is smaller than the packet that it answers, and only an earlier connection's own packet is answered: so all
    // clients of a node that crashed learn of it with their next packet, also those whose packets come in one batch.
    config.min_reset_interval(Duration::ZERO);
    config.supported_versions(vec![1]);
    config
}

fn server_config(
    identity: &Identity,
    timing: Timing,
    speaks: &[&[u8]],
) -> Result<quinn::ServerConfig, BindError> {
    let tls = tls::server(identity, speaks).map_err(|error| BindError::Tls(error.to_string()))?;
    let tls = tls::quic_server(tls).map_err(|error| BindError::Tls(error.to_string()))?;
    let token_key = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &identity.secret::<32>("address tokens"));
    let mut config = quinn::ServerConfig::new(tls, Arc::new(token_key));
    config.transport_config(Arc::new(transport_config(timing)));
    config.max_incoming(HANDSHAKES_MAX);
    config.incoming_buffer_size(HANDSHAKE_BUFFER_BYTES_MAX);
    config.incoming_buffer_size_total(HANDSHAKE_BUFFERS_BYTES_MAX);
    Ok(config)
}

/// Little memory for each connection: a message is small and few are under way.
fn transport_config(timing: Timing) -> TransportConfig {
    let message = u32::try_from(MESSAGE_BYTES_MAX).expect("a message is small");
    // One byte more than a message, so that a longer one is seen as such.
    let stream = message + 1;
    let connection = stream * STREAMS_PER_CONNECTION_MAX;
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_PER_CONNECTION_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(stream))
        .receive_window(VarInt::from_u32(2 * connection))
        .send_window(u64::from(2 * connection))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES_MAX))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES_MAX)
        .initial_mtu(1200)
        .mtu_discovery_config(None)
        // With it, each connection keeps room for ten datagrams to be sent at once, and nothing here ever fills one.
        .enable_segmentation_offload(false)
        .max_idle_timeout(Some(
            IdleTimeout::try_from(timing.idle).unwrap_or(VarInt::from_u32(u32::MAX).into()),
        ));
    config
}

/// A UDP socket. `dual` lets `[::]` take IPv4 too; on a machine without IPv6 it becomes `0.0.0.0`.
fn open(address: SocketAddr, dual: bool) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let opened = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let bound = opened.and_then(|socket| {
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, !dual)?;
        }
        rustix::net::bind(&socket, &address)?;
        Ok(socket)
    });
    match bound {
        Ok(socket) => Ok(socket.into()),
        Err(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL)
            if dual && address.ip() == Ipv6Addr::UNSPECIFIED =>
        {
            tracing::warn!("this machine has no IPv6; listening on IPv4 alone");
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        Err(error) => Err(error.into()),
    }
}
