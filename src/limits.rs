//! Every bound of the program, with its unit in its name.

use std::time::Duration;

/// One message on the wire, head included. It fits in a QUIC datagram on any path that carries QUIC at all.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// One block of the ledger: the unit that a device writes whole.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of one record: two generations of two copies.
pub const RECORD_BLOCKS: usize = 4;
/// The most bytes of a record that a block has room for, beside its own head and checksum.
pub const RECORD_BYTES_MAX: usize = 2048;
/// Clusters that one witness keeps; bounds its ledger at about 1 GiB.
pub const CLUSTERS_MAX: usize = 65_536;

/// Resources that one [`Gates`](crate::fence::Gates) keeps; bounds its ledger at 256 MiB.
pub const RESOURCES_MAX: usize = 16_384;

/// Shortest lease that can be configured.
pub const LEASE_MIN: Duration = Duration::from_millis(200);
/// Longest lease that can be configured.
pub const LEASE_MAX: Duration = Duration::from_secs(600);
/// Lease unless configured.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(2);

/// Bound on the rate error between two clocks, in parts per thousand: the ρ of the lease rule.
pub const CLOCK_RATE_ERROR_PER_MILLE: u32 = 10;

/// Renewals per lease: the leader asks again after this fraction of the lease.
pub const RENEWALS_PER_LEASE: u32 = 5;
/// Renewals per lease while they are not answered: a lossy path is made up for by asking more often, and a healthy one
/// costs nothing more.
pub const UNANSWERED_RENEWALS_PER_LEASE: u32 = 15;
/// Renewals that are remembered while their answers are on the way.
pub const RENEWALS_OUTSTANDING_MAX: usize = 16;

/// Between two keep-alives on an idle connection.
pub const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(15);
/// Idle time-out of a connection, in keep-alives that were missed.
pub const IDLE_KEEP_ALIVES: u32 = 3;

/// Shortest keep-alive that can be configured.
pub const KEEP_ALIVE_MIN: Duration = Duration::from_secs(1);
/// Longest keep-alive that can be configured; a NAT forgets an idle port sooner than that.
pub const KEEP_ALIVE_MAX: Duration = Duration::from_secs(300);

/// Streams that one connection may have open at once.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 8;
/// Handshakes that are under way at once before the server answers with Retry.
pub const HANDSHAKES_BEFORE_RETRY_MAX: usize = 256;
/// Handshakes that are under way at once before new ones are refused.
pub const HANDSHAKES_MAX: usize = 1024;
/// Sources that are told apart at once; all further ones count as one.
pub const SOURCES_MAX: usize = 4096;
/// Handshakes of one source under way before its address has to prove itself.
pub const HANDSHAKES_PER_SOURCE_BEFORE_RETRY_MAX: u32 = 32;
/// Handshakes of one source under way.
pub const HANDSHAKES_PER_SOURCE_MAX: u32 = 256;
/// Handshakes of one source that came to nothing, at once: then it is not heard for a while. Those that showed a pinned key
/// are not counted, so that a whole site behind one address may come back at once.
pub const STRAYS_PER_SOURCE_AT_ONCE: u32 = 100;
/// The same, a second in the long run.
pub const STRAYS_PER_SOURCE_A_SECOND: u32 = 10;
/// Connections of one pinned key, at once; more count as handshakes that came to nothing.
pub const DIALS_PER_KEY_AT_ONCE: u32 = 64;
/// The same, a second in the long run: a replica that is turned away dials every two seconds.
pub const DIALS_PER_KEY_A_SECOND: u32 = 2;
/// Requests of one connection that are turned away unread, at once: then it is closed.
pub const TURNED_AWAY_AT_ONCE: u32 = 16;
/// The same, a second in the long run.
pub const TURNED_AWAY_A_SECOND: u32 = 1;
/// Requests of one replica to the witness, at once; the next ones wait for their turn.
pub const REQUESTS_PER_REPLICA_AT_ONCE: u32 = 200;
/// The same, a second in the long run: four times what the shortest lease of a leadership cluster needs.
pub const REQUESTS_PER_REPLICA_A_SECOND: u32 = 100;
/// Lines of the log about the same kind of trouble, at once; the next one tells how many were left out.
pub const LINES_AT_ONCE: u32 = 20;
/// The same, a second in the long run.
pub const LINES_A_SECOND: u32 = 1;

/// Time for a handshake, as the one who is dialled counts it.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one handshake that arrived and were not looked at yet.
pub const HANDSHAKE_BUFFER_BYTES_MAX: u64 = 16 * 1024;
/// The same for all handshakes together.
pub const HANDSHAKE_BUFFERS_BYTES_MAX: u64 = 1024 * 1024;
/// Accepted connections that wait to be picked up.
pub const ACCEPT_QUEUE_MAX: usize = 64;
/// Connections that one key may have; with one more, the oldest gives way.
pub const CONNECTIONS_PER_KEY_MAX: usize = 16;
/// Time in which a request must have arrived whole once its stream is open.
pub const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Datagrams of one connection that wait to be sent or to be picked up, in bytes.
pub const DATAGRAM_BUFFER_BYTES_MAX: usize = 16 * MESSAGE_BYTES_MAX;
/// Characters of a reason that another node gave, as far as they are shown.
pub const REASON_CHARS_MAX: usize = 400;
/// Time for the last words when a node leaves.
pub const GOODBYE_TIMEOUT: Duration = Duration::from_secs(3);

/// First pause before a node is dialled again.
pub const REDIAL_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a node is dialled again.
pub const REDIAL_MAX: Duration = Duration::from_secs(2);
/// A copied machine that is turned away greets again within this time: dialling and its longest pause.
pub const COPY_GREETS_WITHIN: Duration = Duration::from_secs(15);
/// Addresses of one node.
pub const ADDRESSES_PER_NODE_MAX: usize = 8;
/// Keys of one node; more than one only while they are changed.
pub const KEYS_PER_NODE_MAX: usize = 8;
/// Size of a configuration file: room for every cluster that a witness may serve.
pub const CONFIG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// IP addresses that are tried in one attempt, after names were resolved.
pub const DIAL_ATTEMPTS_MAX: usize = 16;
/// Head start of one address before the next one is tried beside it.
pub const DIAL_STAGGER: Duration = Duration::from_millis(250);
/// Time for resolving a name, and for a QUIC handshake with one address, before it is given up.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A request that is unanswered for this many round trips ends its connection, and the node is dialled again.
pub const ASK_PATIENCE_ROUND_TRIPS: u32 = 8;
/// Shortest patience with a request: a slow disk answers within it.
pub const ASK_PATIENCE_MIN: Duration = Duration::from_secs(3);
/// Longest patience with a request.
pub const ASK_PATIENCE_MAX: Duration = Duration::from_secs(30);

/// A sole replica that starts waits this long, and a lease at least, for voters that it does not reach: one that has not
/// noticed yet that its earlier link is over may know that this state is an image.
pub const RESUME_PATIENCE: Duration = Duration::from_secs(5);

/// The pause of a candidate that was refused grows up to this many leases.
pub const CANDIDATE_BACKOFF_LEASES_MAX: u32 = 8;

/// A recovery raises the term above its lower bits, by two steps of the upper ones: nobody leads so many terms unseen.
pub const RECOVERY_TERM_BITS: u32 = 16;

/// Requests that wait for the witness's voter at once.
pub const WITNESS_QUEUE_MAX: usize = 4096;
/// Inputs that wait for a replica's voter at once.
pub const REPLICA_QUEUE_MAX: usize = 1024;

/// Longest lease of a name, and so, with the clocks' rate error, the time for which a new leader grants no name. A constant:
/// every node has to know what any earlier leader can have given. It may be made shorter in a later release, and longer
/// only if nodes of both releases never serve one cluster.
pub const NAME_LEASE_MAX: Duration = Duration::from_secs(2);
/// Shortest lease of a name.
pub const NAME_LEASE_MIN: Duration = Duration::from_millis(200);
/// Names that are held in one cluster at once.
pub const NAMES_MAX: usize = 1024;
/// Between two attempts for a name that somebody else holds.
pub const NAME_RETRY: Duration = Duration::from_millis(100);
/// A peer of an earlier release closes the link when it is asked for a name: it is not asked again before this.
pub const OLD_PEER_PAUSE: Duration = Duration::from_secs(60);

/// A code for joining is valid for so long, by the witness's wall clock.
pub const CODE_SECONDS: u64 = 600;
/// Bytes of a code before they are spelled.
pub const CODE_BYTES_MAX: usize = 2048;
/// Bytes of the registration of one cluster.
pub const REGISTRATION_BYTES_MAX: u64 = 4096;
/// Connections for joining that a witness has at once; nobody's votes wait for them.
pub const JOINS_MAX: usize = 16;
/// Time for one such connection.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A code that is not known is answered after this time only.
pub const JOIN_DENIED_AFTER: Duration = Duration::from_millis(500);

const _: () =
    assert!(2 * HANDSHAKES_PER_SOURCE_MAX as usize <= HANDSHAKES_MAX, "no source takes all of them");
const _: () = assert!(
    REQUESTS_PER_REPLICA_A_SECOND as u128 * LEASE_MIN.as_millis() >= 2 * RENEWALS_PER_LEASE as u128 * 1000,
    "room for the renewals of the shortest lease"
);
const _: () = assert!(NAME_LEASE_MIN.as_nanos() < NAME_LEASE_MAX.as_nanos());
const _: () = assert!(RESOURCES_MAX <= CLUSTERS_MAX, "a ledger has that many slots");
const _: () = assert!(RECORD_BYTES_MAX < BLOCK_BYTES);
const _: () = assert!(MESSAGE_BYTES_MAX <= 1100, "room for QUIC's own head in a datagram of 1,200 bytes");
const _: () = assert!(COPY_GREETS_WITHIN.as_secs() > 2 * (REDIAL_MAX.as_secs() + DIAL_TIMEOUT.as_secs()));
const _: () = assert!(RENEWALS_PER_LEASE >= 3, "one renewal may be lost without losing the lease");
const _: () = assert!(
    UNANSWERED_RENEWALS_PER_LEASE as usize <= RENEWALS_OUTSTANDING_MAX,
    "an answer that takes nearly a lease still finds its renewal"
);
const _: () = assert!(CLOCK_RATE_ERROR_PER_MILLE < 100);
