//! A UDP relay in user space: a network that can be broken while it runs, without root.
//!
//! A [`Relay`] listens on a port of its own and forwards to one target. Each client gets a socket of its own towards
//! the target, so that answers find their way back and QUIC sees one peer per client. What becomes of a datagram is
//! decided by the [`Flow`] of its direction; relays can share flows, so that one switch cuts a whole direction between
//! two nodes, whoever dialled.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// What becomes of the datagrams of one direction.
#[derive(Debug, Default)]
pub struct Flow {
    cut: AtomicBool,
    delay_ms: AtomicU64,
    loss_per_mille: AtomicU32,
    dice: AtomicU32,
}

impl Flow {
    /// Drops everything from now on, or nothing any more.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Release);
    }

    /// Holds each datagram back for this long.
    pub fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).expect("a delay of a test is short");
        self.delay_ms.store(ms, Ordering::Release);
    }

    /// Loses this many of a thousand datagrams.
    pub fn lose(&self, per_mille: u32) {
        self.loss_per_mille.store(per_mille, Ordering::Release);
    }

    /// Forwards everything at once again.
    pub fn heal(&self) {
        self.cut(false);
        self.delay(Duration::ZERO);
        self.lose(0);
    }

    /// How long to hold a datagram back; `None` to drop it.
    pub fn verdict(&self) -> Option<Duration> {
        if self.cut.load(Ordering::Acquire) {
            return None;
        }
        // A fixed sequence that looks unordered: the same datagrams of a run are lost in the next one.
        let roll = self.dice.fetch_add(0x9e37_79b9, Ordering::Relaxed).wrapping_mul(0x85eb_ca6b) >> 8;
        if roll % 1000 < self.loss_per_mille.load(Ordering::Acquire) {
            return None;
        }
        Some(Duration::from_millis(self.delay_ms.load(Ordering::Acquire)))
    }
}

/// What a relay lets through, and the largest that was given to it.
#[derive(Debug)]
struct Gauge {
    bytes_max: AtomicUsize,
    largest_bytes: AtomicUsize,
}

impl Gauge {
    /// Whether a datagram of so many bytes of payload passes.
    fn passes(&self, bytes: usize) -> bool {
        self.largest_bytes.fetch_max(bytes, Ordering::Relaxed);
        bytes <= self.bytes_max.load(Ordering::Relaxed)
    }
}

/// Runs relays until it is dropped.
#[derive(Debug)]
pub struct Network {
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Starts without any relay.
    pub fn start() -> io::Result<Network> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("relays".into()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Network { runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Starts a relay to `target`: what clients send takes `forth`, the answers take `back`.
    pub fn relay(&self, target: SocketAddr, forth: Arc<Flow>, back: Arc<Flow>) -> io::Result<Relay> {
        let socket = std::net::UdpSocket::bind(LOCAL)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let target = Arc::new(RwLock::new(target));
        let (refusing, refused) = watch::channel(false);
        let _inside = self.runtime.enter();
        let socket = UdpSocket::from_std(socket)?;
        let gauge = Arc::new(Gauge {
            bytes_max: AtomicUsize::new(DATAGRAM_BYTES_MAX),
            largest_bytes: AtomicUsize::new(0),
        });
        let ways = Ways { forth, back, gauge: gauge.clone() };
        self.runtime.spawn(serve(socket, address, refused, target.clone(), ways));
        Ok(Relay { address, target, refusing, gauge })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One relay.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    target: Arc<RwLock<SocketAddr>>,
    refusing: watch::Sender<bool>,
    gauge: Arc<Gauge>,
}

/// Both directions of a relay.
#[derive(Clone)]
struct Ways {
    forth: Arc<Flow>,
    back: Arc<Flow>,
    gauge: Arc<Gauge>,
}

impl Relay {
    /// From now on swallows every datagram with more payload than that, as a path does whose MTU is smaller and
    /// where nobody says so.
    pub fn narrow(&self, bytes_max: usize) {
        self.gauge.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// The largest payload of a datagram that was sent to it, in either direction.
    pub fn largest_bytes(&self) -> usize {
        self.gauge.largest_bytes.load(Ordering::Relaxed)
    }

    /// Where clients send to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes its sockets from now on, so that whoever sends, in either direction, is told that nobody listens; or opens
    /// them again.
    pub fn refuse(&self, refuse: bool) {
        self.refusing.send_replace(refuse);
    }

    /// Forwards to another target from now on.
    pub fn set_target(&self, target: SocketAddr) {
        *self.target.write().unwrap_or_else(PoisonError::into_inner) = target;
    }
}

/// Listens whenever it does not refuse, until the relay is gone.
async fn serve(
    first: UdpSocket,
    address: SocketAddr,
    mut refused: watch::Receiver<bool>,
    target: Arc<RwLock<SocketAddr>>,
    ways: Ways,
) {
    let mut first = Some(first);
    loop {
        let opened = match first.take() {
            Some(socket) => Ok(socket),
            None => UdpSocket::bind(address).await,
        };
        if let Ok(socket) = opened {
            let mut clients = JoinSet::new();
            tokio::select! {
                () = listen(Arc::new(socket), &mut clients, &target, &ways) => {}
                gone = async { refused.wait_for(|refused| *refused).await.is_err() } => if gone { return },
            }
            // Their sockets are closed when they have ended.
            clients.shutdown().await;
        } else {
            // Somebody else has the port for a moment.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let gone = refused.wait_for(|refused| !refused).await.is_err();
        if gone {
            return;
        }
    }
}

async fn listen(
    socket: Arc<UdpSocket>,
    answering: &mut JoinSet<()>,
    target: &RwLock<SocketAddr>,
    ways: &Ways,
) {
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        // An error is the answer to an earlier datagram that nobody wanted.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        let towards = match clients.get(&client) {
            Some(known) => known.clone(),
            None => {
                let Ok(new) = UdpSocket::bind(LOCAL).await else { continue };
                let new = Arc::new(new);
                answering.spawn(answers(new.clone(), socket.clone(), client, ways.clone()));
                clients.insert(client, new.clone());
                new
            }
        };
        let target = *target.read().unwrap_or_else(PoisonError::into_inner);
        if ways.gauge.passes(length) {
            forward(&ways.forth, towards, &buffer[..length], target).await;
        }
    }
}

/// Carries what comes back to one client.
async fn answers(from: Arc<UdpSocket>, to: Arc<UdpSocket>, client: SocketAddr, ways: Ways) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let Ok((length, _)) = from.recv_from(&mut buffer).await else { continue };
        if ways.gauge.passes(length) {
            forward(&ways.back, to.clone(), &buffer[..length], client).await;
        }
    }
}

async fn forward(flow: &Flow, socket: Arc<UdpSocket>, bytes: &[u8], to: SocketAddr) {
    match flow.verdict() {
        None => {}
        Some(Duration::ZERO) => {
            let _ = socket.send_to(bytes, to).await;
        }
        Some(delay) => {
            let bytes = bytes.to_vec();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = socket.send_to(&bytes, to).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak::testing::clock::Clock;

    const DEADLINE: Duration = Duration::from_secs(20);

    struct Bench {
        _network: Network,
        relay: Relay,
        forth: Arc<Flow>,
        back: Arc<Flow>,
        client: std::net::UdpSocket,
        server: std::net::UdpSocket,
    }

    fn bench() -> Bench {
        let network = Network::start().unwrap();
        let socket = || {
            let socket = std::net::UdpSocket::bind(LOCAL).unwrap();
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket
        };
        let (client, server) = (socket(), socket());
        let (forth, back) = (Arc::new(Flow::default()), Arc::new(Flow::default()));
        let relay = network.relay(server.local_addr().unwrap(), forth.clone(), back.clone()).unwrap();
        Bench { _network: network, relay, forth, back, client, server }
    }

    fn receive(socket: &std::net::UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 2048];
        let (length, from) = socket.recv_from(&mut buffer).expect("it arrives before the deadline");
        (buffer[..length].to_vec(), from)
    }

    #[test]
    fn datagrams_and_their_answers_pass_and_each_client_has_a_source_of_its_own() {
        let b = bench();
        let other = std::net::UdpSocket::bind(LOCAL).unwrap();
        b.client.send_to(b"one", b.relay.address()).unwrap();
        let (bytes, first) = receive(&b.server);
        assert_eq!(bytes, b"one");
        other.send_to(b"two", b.relay.address()).unwrap();
        let (bytes, second) = receive(&b.server);
        assert_eq!(bytes, b"two");
        assert_ne!(first, second);
        b.client.send_to(b"three", b.relay.address()).unwrap();
        assert_eq!(receive(&b.server), (b"three".to_vec(), first), "a client keeps its source");
        b.server.send_to(b"back", first).unwrap();
        assert_eq!(receive(&b.client), (b"back".to_vec(), b.relay.address()));
    }

    #[test]
    fn a_cut_direction_drops_the_other_one_passes_and_healing_ends_it() {
        let b = bench();
        b.client.send_to(b"open", b.relay.address()).unwrap();
        let (_, client_as_seen) = receive(&b.server);
        b.forth.cut(true);
        b.client.send_to(b"lost", b.relay.address()).unwrap();
        b.server.send_to(b"passes", client_as_seen).unwrap();
        assert_eq!(receive(&b.client).0, b"passes");
        // The relay looks at datagrams of one client in order: so a marker behind the lost one shows that it is gone,
        // and the switch is thrown only when the relay has dropped something.
        while b.forth.dice.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        b.back.cut(true);
        b.server.send_to(b"lost too", client_as_seen).unwrap();
        b.client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(b.client.recv_from(&mut [0; 64]).is_err(), "silence is what is tested");
        b.server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(b.server.recv_from(&mut [0; 64]).is_err(), "silence is what is tested");
        b.forth.heal();
        b.back.heal();
        b.client.set_read_timeout(Some(DEADLINE)).unwrap();
        b.server.set_read_timeout(Some(DEADLINE)).unwrap();
        b.client.send_to(b"again", b.relay.address()).unwrap();
        assert_eq!(receive(&b.server).0, b"again");
        b.server.send_to(b"answer", client_as_seen).unwrap();
        assert_eq!(receive(&b.client).0, b"answer");
    }

    #[test]
    fn a_delayed_datagram_arrives_late_and_a_lossy_flow_loses_some_and_not_all() {
        let b = bench();
        b.forth.delay(Duration::from_millis(80));
        let sent = Clock.now();
        b.client.send_to(b"late", b.relay.address()).unwrap();
        receive(&b.server);
        assert!(Clock.now().since(sent) >= Duration::from_millis(80));
        b.forth.heal();
        let flow = Flow::default();
        flow.lose(300);
        let lost = (0..1000).filter(|_| flow.verdict().is_none()).count();
        assert!((200..400).contains(&lost), "{lost} of a thousand");
    }

    #[test]
    fn a_relay_that_refuses_says_so_to_both_ends_and_opens_again() {
        let b = bench();
        b.client.send_to(b"open", b.relay.address()).unwrap();
        let (_, client_as_seen) = receive(&b.server);
        b.relay.refuse(true);
        // The kernel tells a sender with a connected socket, at the next call after the refusal.
        let told = |to: SocketAddr| {
            let socket = std::net::UdpSocket::bind(LOCAL).unwrap();
            socket.connect(to).unwrap();
            let end = Clock.now() + DEADLINE;
            while socket.send(b"anybody?").map_err(|error| error.kind())
                != Err(io::ErrorKind::ConnectionRefused)
            {
                assert!(Clock.now() < end, "nobody refused");
                std::thread::yield_now();
            }
        };
        told(b.relay.address());
        told(client_as_seen);
        b.relay.refuse(false);
        b.client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        b.server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let end = Clock.now() + DEADLINE;
        let mut buffer = [0; 64];
        loop {
            b.client.send_to(b"again", b.relay.address()).unwrap();
            if let Ok((5, _)) = b.server.recv_from(&mut buffer) {
                break;
            }
            assert!(Clock.now() < end, "it does not open again");
        }
    }

    #[test]
    fn a_narrow_relay_swallows_what_is_larger_in_silence_and_remembers_how_large_it_was() {
        let b = bench();
        b.relay.narrow(100);
        b.client.send_to(&[1; 101], b.relay.address()).unwrap();
        b.client.send_to(&[2; 100], b.relay.address()).unwrap();
        let (bytes, client_as_seen) = receive(&b.server);
        assert_eq!((bytes, b.relay.largest_bytes()), (vec![2; 100], 101));
        b.server.send_to(&[3; 102], client_as_seen).unwrap();
        b.server.send_to(&[4; 100], client_as_seen).unwrap();
        assert_eq!((receive(&b.client).0, b.relay.largest_bytes()), (vec![4; 100], 102));
    }

    #[test]
    fn a_relay_can_be_pointed_elsewhere() {
        let b = bench();
        let elsewhere = std::net::UdpSocket::bind(LOCAL).unwrap();
        elsewhere.set_read_timeout(Some(DEADLINE)).unwrap();
        b.relay.set_target(elsewhere.local_addr().unwrap());
        b.client.send_to(b"moved", b.relay.address()).unwrap();
        assert_eq!(receive(&elsewhere).0, b"moved");
    }
}
