//! Real sockets on loopback. Waits are for conditions with a deadline.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::door::Load;
use super::*;
use crate::edge::identity::{Fingerprint, Identity};
use crate::edge::tls::{self, Expected};
use crate::limits::{
    CONNECTIONS_PER_KEY_MAX, MESSAGE_BYTES_MAX, STREAMS_PER_CONNECTION_MAX, TURNED_AWAY_AT_ONCE,
};

const DEADLINE: Duration = Duration::from_secs(20);
/// Far beyond the deadline: what ends a connection in these tests is never the idle time-out.
const TIMING: Timing = Timing {
    keep_alive: Duration::from_secs(100),
    idle: Duration::from_secs(300),
    handshake: Duration::from_secs(5),
};
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it has to happen before the deadline")
}

fn node() -> Identity {
    Identity::generate().unwrap()
}

fn listen(identity: &Identity, pins: &[Fingerprint]) -> Endpoint {
    Endpoint::bind(identity, &[LOCAL], Pins::new(pins.iter().copied()), TIMING).unwrap()
}

fn dialler(identity: &Identity) -> Endpoint {
    Endpoint::bind(identity, &[], Pins::default(), TIMING).unwrap()
}

fn address(endpoint: &Endpoint) -> Vec<HostPort> {
    let at = endpoint.local_addresses()[0];
    vec![at.to_string().parse().unwrap()]
}

/// Answers every request with its bytes reversed.
fn echo(connection: Connection) {
    tokio::spawn(async move {
        while let Ok((mut request, responder)) = connection.next_request().await {
            request.reverse();
            let _ = responder.answer(&request).await;
        }
    });
}

fn echo_all(endpoint: Endpoint) {
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            echo(connection);
        }
    });
}

/// A connected pair: the dialled end and the accepted end.
async fn pair() -> (Endpoint, Connection, Endpoint, Connection) {
    let (a, b) = (node(), node());
    let (client, server) = (listen(&a, &[b.fingerprint()]), listen(&b, &[a.fingerprint()]));
    let dialled = soon(client.dial(&address(&server), &[b.fingerprint()])).await.unwrap();
    let accepted = soon(server.accept()).await.unwrap();
    assert_eq!((dialled.fingerprint(), accepted.fingerprint()), (b.fingerprint(), a.fingerprint()));
    (client, dialled, server, accepted)
}

#[tokio::test]
async fn pinned_nodes_ask_and_answer_both_ways() {
    let (_client, dialled, _server, accepted) = pair().await;
    echo(accepted.clone());
    echo(dialled.clone());
    assert_eq!(soon(dialled.ask(b"abc")).await.unwrap(), b"cba");
    assert_eq!(soon(accepted.ask(b"xyz")).await.unwrap(), b"zyx");
    let full = vec![7; MESSAGE_BYTES_MAX];
    assert_eq!(soon(dialled.ask(&full)).await.unwrap(), full);
    assert_eq!(soon(dialled.ask(b"")).await.unwrap(), b"");
}

#[tokio::test]
async fn more_requests_than_streams_are_all_answered() {
    let (_client, dialled, _server, accepted) = pair().await;
    echo(accepted);
    let mut asks = tokio::task::JoinSet::new();
    for number in 0..8 * STREAMS_PER_CONNECTION_MAX {
        let dialled = dialled.clone();
        asks.spawn(async move { (number, dialled.ask(&number.to_be_bytes()).await) });
    }
    while let Some(done) = soon(asks.join_next()).await {
        let (number, reply) = done.unwrap();
        assert_eq!(reply.unwrap(), number.to_le_bytes());
    }
}

#[tokio::test]
async fn datagrams_go_both_ways() {
    let (_client, dialled, _server, accepted) = pair().await;
    echo(accepted.clone());
    // After the first answer the handshake is over on both sides, and loopback loses nothing.
    soon(dialled.ask(b"hello")).await.unwrap();
    let full = vec![9; MESSAGE_BYTES_MAX];
    dialled.send_datagram(&full).unwrap();
    assert_eq!(soon(accepted.next_datagram()).await.unwrap(), full);
    accepted.send_datagram(b"pong").unwrap();
    assert_eq!(soon(dialled.next_datagram()).await.unwrap(), b"pong");
    assert_eq!(dialled.send_datagram(&[0; MESSAGE_BYTES_MAX + 1]), Err(LinkError::TooLongOurs(1025)));
}

#[tokio::test]
async fn a_key_that_is_not_pinned_is_refused_and_told_why() {
    let (stranger, b) = (node(), node());
    let (client, server) = (dialler(&stranger), listen(&b, &[node().fingerprint()]));
    // The dial may succeed; the first request may not.
    let error = match soon(client.dial(&address(&server), &[b.fingerprint()])).await {
        Ok(connection) => soon(connection.ask(b"vote")).await.unwrap_err(),
        Err(failed) => failed.attempts[0].error.clone(),
    };
    let text = error.to_string();
    assert!(matches!(error, LinkError::Closed { code: CloseCode::NOT_PINNED, .. }), "{error:?}");
    assert!(text.contains(&stranger.fingerprint().to_string()) && text.contains("not pinned"), "{text}");
    assert!(text.contains("add it to `keys`"), "{text}");
    assert_eq!(error.fault(), Fault::Operator);
    // Nothing of the stranger came through.
    assert!(timeout(Duration::ZERO, server.accept()).await.is_err());
}

#[tokio::test]
async fn a_node_with_another_key_than_the_pinned_one_is_not_talked_to() {
    let (a, b, other) = (node(), node(), node());
    let (client, server) = (dialler(&a), listen(&b, &[a.fingerprint()]));
    let failed = soon(client.dial(&address(&server), &[other.fingerprint()])).await.unwrap_err();
    let expected = LinkError::WrongKey { expected: vec![other.fingerprint()], got: b.fingerprint() };
    assert_eq!(failed.attempts[0].error, expected);
    let text = failed.to_string();
    assert!(text.contains(&b.fingerprint().to_string()), "{text}");
    assert!(text.contains(&other.fingerprint().to_string()), "{text}");
    assert_eq!(failed.fault(), Fault::Operator);
}

#[tokio::test]
async fn during_a_rotation_either_of_two_keys_will_do() {
    let (a, old, new) = (node(), node(), node());
    let pins = [old.fingerprint(), new.fingerprint()];
    for identity in [&old, &new] {
        let (client, server) = (dialler(&a), listen(identity, &[a.fingerprint()]));
        let connection = soon(client.dial(&address(&server), &pins)).await.unwrap();
        assert_eq!(connection.fingerprint(), identity.fingerprint());
    }
}

#[tokio::test]
async fn removing_a_pin_closes_the_live_connections_of_that_key_alone() {
    let (a, b, server_identity) = (node(), node(), node());
    let server = listen(&server_identity, &[a.fingerprint(), b.fingerprint()]);
    echo_all(server.clone());
    let (dial_a, dial_b) = (dialler(&a), dialler(&b));
    let to = [server_identity.fingerprint()];
    let from_a = soon(dial_a.dial(&address(&server), &to)).await.unwrap();
    let from_b = soon(dial_b.dial(&address(&server), &to)).await.unwrap();
    soon(from_a.ask(b"1")).await.unwrap();
    soon(from_b.ask(b"1")).await.unwrap();
    server.pins().replace([b.fingerprint()]);
    let why = soon(from_a.closed()).await;
    assert!(matches!(&why, LinkError::Closed { code: CloseCode::NOT_PINNED, .. }), "{why:?}");
    soon(from_b.ask(b"2")).await.unwrap();
    assert_eq!(from_b.close_reason(), None);
}

#[tokio::test]
async fn the_oldest_connection_of_a_key_gives_way() {
    let (a, b) = (node(), node());
    let (client, server) = (dialler(&a), listen(&b, &[a.fingerprint()]));
    echo_all(server.clone());
    let mut connections = Vec::new();
    for _ in 0..=CONNECTIONS_PER_KEY_MAX {
        let connection = soon(client.dial(&address(&server), &[b.fingerprint()])).await.unwrap();
        // The dialling side keeps the same rule: ask nothing of a connection that it closed itself.
        connections.push(connection);
    }
    let why = soon(connections[0].closed()).await;
    assert!(
        matches!(&why, LinkError::ClosedHere | LinkError::Closed { code: CloseCode::CROWDED, .. }),
        "{why:?}"
    );
    soon(connections[CONNECTIONS_PER_KEY_MAX].ask(b"still here")).await.unwrap();
}

/// A QUIC client of our own making, with TLS as a test wants it.
async fn raw_dial(
    identity: &Identity,
    to: SocketAddr,
    server: Fingerprint,
    change: impl FnOnce(&mut rustls::ClientConfig),
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let mut tls = tls::client(identity, Expected::any_of(&[server]), tls::ALPN).unwrap();
    change(&mut tls);
    let config = quinn::ClientConfig::new(tls::quic_client(tls).unwrap());
    let endpoint = quinn::Endpoint::client(LOCAL).unwrap();
    endpoint.connect_with(config, to, tls::SERVER_NAME).unwrap().await
}

#[tokio::test]
async fn another_protocol_is_refused_by_name() {
    let (a, b) = (node(), node());
    let server = listen(&b, &[a.fingerprint()]);
    let to = server.local_addresses()[0];
    for alpn in [vec![b"tiebreak/2".to_vec()], vec![b"h3".to_vec()], vec![]] {
        let error =
            soon(raw_dial(&a, to, b.fingerprint(), |tls| tls.alpn_protocols = alpn)).await.unwrap_err();
        assert_eq!(LinkError::from(error), LinkError::OtherProtocol);
    }
}

#[tokio::test]
async fn a_client_without_a_key_gets_nowhere() {
    let (a, b) = (node(), node());
    let server = listen(&b, &[a.fingerprint()]);
    let to = server.local_addresses()[0];
    #[derive(Debug)]
    struct NoKey;
    impl rustls::client::ResolvesClientCert for NoKey {
        fn resolve(
            &self,
            _: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }
        fn has_certs(&self) -> bool {
            false
        }
    }
    let without = |tls: &mut rustls::ClientConfig| tls.client_auth_cert_resolver = Arc::new(NoKey);
    let error = match soon(raw_dial(&a, to, b.fingerprint(), without)).await {
        Ok(connection) => soon(connection.closed()).await,
        Err(error) => error,
    };
    assert!(matches!(error, quinn::ConnectionError::ConnectionClosed(_)), "{error:?}");
    assert!(timeout(Duration::ZERO, server.accept()).await.is_err());
}

#[tokio::test]
async fn a_stolen_certificate_without_its_private_key_gets_nowhere() {
    let (a, thief, b) = (node(), node(), node());
    let server = listen(&b, &[a.fingerprint()]);
    let to = server.local_addresses()[0];
    let mixed = rustls::sign::CertifiedKey::new(a.certified().cert.clone(), thief.certified().key.clone());
    let steal = |tls: &mut rustls::ClientConfig| {
        tls.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(mixed));
    };
    let error = match soon(raw_dial(&thief, to, b.fingerprint(), steal)).await {
        Ok(connection) => soon(connection.closed()).await,
        Err(error) => error,
    };
    assert!(matches!(error, quinn::ConnectionError::ConnectionClosed(_)), "{error:?}");
    assert!(timeout(Duration::ZERO, server.accept()).await.is_err());
}

#[test]
fn a_hello_of_tls_1_2_is_refused() {
    // A ClientHello that offers TLS 1.2 alone: version 0303, 32 random bytes, no session, one cipher suite
    // (ECDHE-ECDSA-AES128-GCM), no compression, and the extensions without which a server looks no further.
    let extensions: &[u8] = &[
        0, 13, 0, 4, 0, 2, 8, 7, // signature_algorithms: ed25519
        0, 10, 0, 4, 0, 2, 0, 29, // supported_groups: x25519
        0, 11, 0, 2, 1, 0, // ec_point_formats: uncompressed
    ];
    let mut body = vec![3, 3];
    body.extend([0x55; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend(extensions);
    let length = u8::try_from(body.len()).unwrap();
    let mut hello = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend(&body);

    let config = tls::server(&node(), &[tls::ALPN]).unwrap();
    let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    server.read_tls(&mut hello.as_slice()).unwrap();
    let error = server.process_new_packets().unwrap_err();
    assert!(matches!(error, rustls::Error::PeerIncompatible(_)), "{error:?}");
}

#[test]
fn there_is_no_early_data_and_no_resumption() {
    let identity = node();
    let server = tls::server(&identity, &[tls::ALPN]).unwrap();
    assert_eq!((server.max_early_data_size, server.send_tls13_tickets), (0, 0));
    assert!(!server.session_storage.can_cache() && !server.ticketer.enabled());
    let client = tls::client(&identity, Expected::any_of(&[]), tls::ALPN).unwrap();
    assert!(!client.enable_early_data && !client.enable_sni);
}

#[tokio::test]
async fn a_request_that_is_too_long_is_turned_away_and_the_connection_goes_on() {
    let (_client, dialled, _server, accepted) = pair().await;
    echo(accepted);
    let long = vec![1; MESSAGE_BYTES_MAX + 1];
    assert_eq!(soon(dialled.ask(&long)).await, Err(LinkError::TooLongOurs(1025)));
    // Past our own check, as a hostile node would.
    let (mut send, mut receive) = soon(dialled.quinn().open_bi()).await.unwrap();
    let _ = send.write_all(&long).await;
    let _ = send.finish();
    let error = soon(receive.read_to_end(10)).await.unwrap_err();
    let expected = quinn::ReadError::Reset(CloseCode::TOO_LONG.wire());
    assert!(matches!(&error, quinn::ReadToEndError::Read(read) if *read == expected), "{error:?}");
    assert_eq!(soon(dialled.ask(b"on")).await.unwrap(), b"no");
}

#[tokio::test]
async fn a_reply_that_is_too_long_is_the_other_nodes_fault() {
    let (_client, dialled, _server, accepted) = pair().await;
    tokio::spawn(async move {
        let (mut send, mut receive) = accepted.quinn().accept_bi().await.unwrap();
        let _ = receive.read_to_end(10).await;
        let _ = send.write_all(&[0; MESSAGE_BYTES_MAX + 1]).await;
        accepted.closed().await
    });
    let error = soon(dialled.ask(b"x")).await.unwrap_err();
    assert_eq!((error.clone(), error.fault()), (LinkError::TooLongTheirs, Fault::Peer));
}

#[tokio::test]
async fn a_request_that_stalls_holds_up_no_other() {
    let (_client, dialled, _server, accepted) = pair().await;
    echo(accepted);
    let (mut stalled, _receive) = soon(dialled.quinn().open_bi()).await.unwrap();
    soon(stalled.write_all(b"half of a")).await.unwrap();
    assert_eq!(soon(dialled.ask(b"ok")).await.unwrap(), b"ko");
}

#[tokio::test]
async fn a_request_dropped_without_an_answer_says_so() {
    let (_client, dialled, _server, accepted) = pair().await;
    tokio::spawn(async move {
        drop(accepted.next_request().await);
        accepted.closed().await
    });
    assert_eq!(soon(dialled.ask(b"?")).await, Err(LinkError::GivenUp(CloseCode::NO_ANSWER)));
}

#[tokio::test]
async fn the_reason_of_a_close_is_seen_on_the_other_side() {
    let (_client, dialled, _server, accepted) = pair().await;
    accepted.close(CloseCode::MISBEHAVED, "the vote was signed in crayon");
    let why = soon(dialled.closed()).await;
    assert_eq!(
        why,
        LinkError::Closed { code: CloseCode::MISBEHAVED, reason: "the vote was signed in crayon".into() }
    );
    assert_eq!(soon(dialled.ask(b"x")).await, Err(why));
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_connection() {
    let (_client, dialled, _server, accepted) = pair().await;
    drop(dialled);
    let why = soon(accepted.closed()).await;
    assert!(matches!(why, LinkError::Closed { code: CloseCode::DONE, .. }), "{why:?}");
}

#[tokio::test]
async fn a_node_that_leaves_leaves_no_ghosts() {
    let (_client, dialled, server, _accepted) = pair().await;
    soon(server.shutdown("going down for maintenance")).await;
    let why = soon(dialled.closed()).await;
    let expected =
        LinkError::Closed { code: CloseCode::LEAVING, reason: "going down for maintenance".into() };
    assert_eq!(why, expected);
    assert!(soon(server.accept()).await.is_none());
}

/// Dials a server under this load: whether it gets in, and how often the server asked for a proof and refused.
async fn dial_under(load: Load) -> (Result<(), LinkError>, [u64; 2]) {
    let (a, b) = (node(), node());
    let server = Endpoint::bind_under(&b, &[LOCAL], Pins::new([a.fingerprint()]), TIMING, load).unwrap();
    echo_all(server.clone());
    let client = dialler(&a);
    let dialled = match soon(client.dial(&address(&server), &[b.fingerprint()])).await {
        Ok(connection) => soon(connection.ask(b"12")).await.map(|reply| assert_eq!(reply, b"21")),
        Err(mut failed) => Err(failed.attempts.remove(0).error),
    };
    (dialled, ["retried", "refused"].map(|name| counted(&server, name)))
}

fn counted(endpoint: &Endpoint, name: &str) -> u64 {
    endpoint.tally().counts().find(|(known, _)| *known == name).unwrap().1
}

#[tokio::test]
async fn under_load_an_address_proves_itself_first_and_then_gets_in() {
    assert_eq!(dial_under(Load::default()).await, (Ok(()), [0, 0]));
    let (dialled, [retried, _]) = dial_under(Load { before_retry_max: 0, ..Load::default() }).await;
    assert!(dialled.is_ok() && retried > 0, "{dialled:?} {retried}");
    let mut busy = Load::default();
    busy.per_source.before_proof_max = 0;
    let (dialled, [retried, _]) = dial_under(busy).await;
    assert!(dialled.is_ok() && retried > 0, "{dialled:?} {retried}");
}

#[tokio::test]
async fn with_too_many_handshakes_under_way_a_dial_is_refused() {
    let full = Load { before_retry_max: 0, handshakes_max: 0, ..Load::default() };
    let mut busy = Load::default();
    busy.per_source.handshakes_max = 0;
    for load in [full, busy] {
        let (dialled, [_, refused]) = dial_under(load).await;
        assert_eq!(dialled, Err(LinkError::Refused));
        assert!(refused > 0);
    }
}

#[tokio::test]
async fn who_goes_on_sending_what_cannot_be_read_is_cut_off() {
    let (_client, dialled, server, accepted) = pair().await;
    echo(accepted);
    let mut sent = 0;
    let why = loop {
        sent += 1;
        assert!(sent < 100 * TURNED_AWAY_AT_ONCE, "nobody cuts it off");
        let Ok((mut send, mut receive)) = soon(dialled.quinn().open_bi()).await else {
            break soon(dialled.closed()).await;
        };
        let _ = send.write_all(&[1; MESSAGE_BYTES_MAX + 1]).await;
        let _ = soon(receive.read_to_end(10)).await;
    };
    assert!(matches!(&why, LinkError::Closed { code: CloseCode::MISBEHAVED, .. }), "{why:?}");
    assert!(counted(&server, "request_turned_away") > u64::from(TURNED_AWAY_AT_ONCE));
}

/// A server on a thread and a runtime of its own.
struct Doomed {
    at: SocketAddr,
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Doomed {
    fn start(identity: &Identity, at: SocketAddr, pin: Fingerprint) -> Doomed {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let identity = identity.clone();
        let serve = async move {
            let endpoint = Endpoint::bind(&identity, &[at], Pins::new([pin]), TIMING).unwrap();
            tell.send(endpoint.local_addresses()[0]).unwrap();
            loop {
                tokio::select! {
                    _ = &mut stopped => return endpoint,
                    Some(connection) = endpoint.accept() => echo(connection),
                }
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let endpoint = runtime.block_on(serve);
            // Nothing runs any more, so that nobody is told: like a process that is killed.
            drop(runtime);
            drop(endpoint);
        });
        Doomed { at: told.recv_timeout(DEADLINE).unwrap(), stop, thread }
    }

    fn kill(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
        drop(UdpSocket::bind(self.at).expect("the dead server's port is free"));
    }
}

#[test]
fn a_restarted_node_resets_its_old_connections_at_once() {
    let (a, b) = (node(), node());
    let server = Doomed::start(&b, LOCAL, a.fingerprint());
    let at = server.at;
    let here = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_client, connection) = here.block_on(async {
        let client = dialler(&a);
        let to = [at.to_string().parse().unwrap()];
        let connection = soon(client.dial(&to, &[b.fingerprint()])).await.unwrap();
        assert_eq!(soon(connection.ask(b"12")).await.unwrap(), b"21");
        (client, connection)
    });
    server.kill();
    let _server = Doomed::start(&b, at, a.fingerprint());
    // The idle time-out is far away: only a reset can tell in time.
    here.block_on(async { assert_eq!(soon(connection.ask(b"34")).await, Err(LinkError::Restarted)) });
}

#[test]
fn a_stranger_on_the_same_port_cannot_reset_a_connection() {
    let (a, b, thief) = (node(), node(), node());
    let server = Doomed::start(&b, LOCAL, a.fingerprint());
    let at = server.at;
    let here = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_client, connection) = here.block_on(async {
        let client = dialler(&a);
        let to = [at.to_string().parse().unwrap()];
        let connection = soon(client.dial(&to, &[b.fingerprint()])).await.unwrap();
        soon(connection.ask(b"12")).await.unwrap();
        (client, connection)
    });
    server.kill();
    let stranger = Doomed::start(&thief, at, a.fingerprint());
    here.block_on(async {
        // Enough for several packets to go out and be answered, were there an answer.
        let asked = timeout(Duration::from_millis(300), connection.ask(b"34")).await;
        assert!(asked.is_err(), "{asked:?}");
    });
    stranger.kill();
    let _server = Doomed::start(&b, at, a.fingerprint());
    here.block_on(async { assert_eq!(soon(connection.ask(b"56")).await, Err(LinkError::Restarted)) });
}

#[tokio::test]
async fn a_dead_address_does_not_hide_a_live_one() {
    let (a, b) = (node(), node());
    let (client, server) = (dialler(&a), listen(&b, &[a.fingerprint()]));
    // Bound and silent: nothing there will ever answer.
    let dead = UdpSocket::bind(LOCAL).unwrap();
    let mut addresses = vec![dead.local_addr().unwrap().to_string().parse().unwrap()];
    addresses.extend(address(&server));
    let connection = soon(client.dial(&addresses, &[b.fingerprint()])).await.unwrap();
    echo_all(server.clone());
    assert_eq!(soon(connection.ask(b"12")).await.unwrap(), b"21");
    assert_eq!(connection.remote_address(), server.local_addresses()[0]);
}

#[tokio::test]
async fn a_dial_that_fails_lists_what_was_tried_and_why() {
    let (a, b) = (node(), node());
    let (client, server) = (dialler(&a), listen(&b, &[a.fingerprint()]));
    let dead = UdpSocket::bind(LOCAL).unwrap();
    let dead_at = dead.local_addr().unwrap().to_string();
    let mut addresses: Vec<HostPort> = vec!["name.invalid:7400".parse().unwrap(), dead_at.parse().unwrap()];
    addresses.extend(address(&server));
    let failed = soon(client.dial(&addresses, &[node().fingerprint()])).await.unwrap_err();
    let text = failed.to_string();
    assert_eq!(failed.attempts.len(), 3, "{text}");
    assert!(text.contains("name.invalid:7400: ") && text.contains("cannot be resolved"), "{text}");
    assert!(text.contains(&format!("{dead_at}: nothing was heard")), "{text}");
    assert!(text.contains(&b.fingerprint().to_string()), "{text}");
    let nowhere = soon(client.dial(&[], &[b.fingerprint()])).await.unwrap_err();
    assert!(nowhere.to_string().contains("no address is configured"));
}

#[tokio::test]
async fn a_name_is_resolved() {
    let (a, b) = (node(), node());
    let (client, server) = (dialler(&a), listen(&b, &[a.fingerprint()]));
    let port = server.local_addresses()[0].port();
    let name = HostPort { host: "localhost".into(), port };
    soon(client.dial(&[name], &[b.fingerprint()])).await.unwrap();
}

fn no_ipv6() -> bool {
    let missing = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err();
    if missing {
        eprintln!("skipped: this machine has no IPv6 loopback");
    }
    missing
}

#[tokio::test]
async fn ipv6_works_and_one_socket_takes_both_kinds() {
    if no_ipv6() {
        return;
    }
    let (a, b) = (node(), node());
    let client = dialler(&a);
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let server = Endpoint::bind(&b, &[any], Pins::new([a.fingerprint()]), TIMING).unwrap();
    echo_all(server.clone());
    let port = server.local_addresses()[0].port();
    for host in ["::1", "127.0.0.1"] {
        let to = HostPort { host: host.into(), port };
        let connection = soon(client.dial(std::slice::from_ref(&to), &[b.fingerprint()])).await.unwrap();
        assert_eq!(soon(connection.ask(b"12")).await.unwrap(), b"21");
        assert_eq!(connection.remote_address().to_string(), to.to_string());
    }
}

#[tokio::test]
async fn several_listen_addresses_are_served_at_once() {
    if no_ipv6() {
        return;
    }
    let (a, b) = (node(), node());
    let client = dialler(&a);
    let addresses = [LOCAL, SocketAddr::from((Ipv6Addr::LOCALHOST, 0))];
    let server = Endpoint::bind(&b, &addresses, Pins::new([a.fingerprint()]), TIMING).unwrap();
    echo_all(server.clone());
    for at in server.local_addresses() {
        let to = at.to_string().parse().unwrap();
        let connection = soon(client.dial(&[to], &[b.fingerprint()])).await.unwrap();
        assert_eq!(soon(connection.ask(b"12")).await.unwrap(), b"21");
    }
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = UdpSocket::bind(LOCAL).unwrap();
    let at = taken.local_addr().unwrap();
    let error = Endpoint::bind(&node(), &[at], Pins::default(), TIMING).err().unwrap().to_string();
    assert!(error.contains(&at.to_string()) && error.contains("port must not be in use"), "{error}");
}
