//! `deploy/postgresql/fence.sql` on a real PostgreSQL: what it refuses, and that nothing slips through between sessions.

#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);

/// The newest server's programs that are installed as Debian does it, or that are on the path.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    let on_path = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).find(|bin| bin.join("initdb").exists()));
    found.pop().or(on_path)
}

/// A server of its own, on a socket in a temporary directory.
struct Server {
    directory: TempDir,
    bin: PathBuf,
}

impl Server {
    /// `None`, said plainly, where there is no PostgreSQL.
    fn start() -> Option<Server> {
        let Some(bin) = programs() else {
            eprintln!("skipped: there is no PostgreSQL here (apt-get install postgresql-15)");
            return None;
        };
        let directory = TempDir::new_in("/tmp").expect("a directory");
        let server = Server { directory, bin };
        if rustix::process::geteuid().is_root() {
            let given = Command::new("chown").arg("postgres").arg(server.place()).status();
            assert!(given.expect("chown runs").success(), "the user `postgres` comes with the server");
        }
        server.run("initdb", &["-A", "trust", "-U", "owner", "-N", "-D", "data"]);
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c fsync=off -c wal_level=logical",
            server.place().display()
        );
        server.run("pg_ctl", &["start", "-w", "-D", "data", "-l", "log", "-o", &options]);
        let script =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/postgresql/fence.sql"));
        // Twice: it can be run again over what is there.
        for _ in 0..2 {
            server.owner().must(script.as_ref().expect("the script"));
        }
        server.owner().must(
            "CREATE TABLE orders (what text); CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON orders TO app;
             SELECT tiebreak.protect('orders', 'shop');",
        );
        Some(server)
    }

    fn place(&self) -> &Path {
        self.directory.path()
    }

    /// One of the server's programs, which refuse to run as root.
    fn run(&self, program: &str, arguments: &[&str]) {
        let path = self.bin.join(program);
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        let output =
            command.args(arguments).current_dir(self.place()).stdin(Stdio::null()).stdout(Stdio::null());
        assert!(output.status().expect("it runs").success(), "{program} {arguments:?}");
    }

    fn session(&self, user: &str) -> Session {
        self.session_in(user, "postgres")
    }

    fn session_in(&self, user: &str, database: &str) -> Session {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-XqAt", "-U", user, "-d", database, "-h"]).arg(self.place());
        let mut child = psql
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("psql runs");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (to, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| to.send(line))
        });
        Session { child, stdin, lines }
    }

    fn owner(&self) -> Session {
        self.session("owner")
    }

    fn app(&self) -> Session {
        self.session("app")
    }

    fn orders(&self) -> Vec<String> {
        self.owner().must("SELECT what FROM orders ORDER BY what")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.run("pg_ctl", &["stop", "-m", "immediate", "-D", "data"]);
    }
}

/// One connection, in `psql`.
struct Session {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Session {
    fn begin(&mut self, sql: &str) {
        // What a failure is called comes behind all that the statements have said.
        writeln!(self.stdin, "{sql}\n;\n\\echo end :LAST_ERROR_SQLSTATE :ERROR").expect("psql listens");
    }

    /// What it says when it has come to an end by then: rows, or the SQLSTATE of the failure.
    fn end_within(&mut self, span: Duration) -> Option<Result<Vec<String>, String>> {
        let until = Instant::now() + span;
        let mut rows = Vec::new();
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("end ") => {
                    let words: Vec<&str> = line.split(' ').collect();
                    return Some(if words[2] == "true" { Err(words[1].into()) } else { Ok(rows) });
                }
                Ok(line) => rows.push(line),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(Err("disconnected".into())),
            }
        }
    }

    fn run(&mut self, sql: &str) -> Result<Vec<String>, String> {
        self.begin(sql);
        self.end_within(DEADLINE).expect("it comes to an end")
    }

    fn must(&mut self, sql: &str) -> Vec<String> {
        self.run(sql).unwrap_or_else(|state| panic!("{state}: {sql}"))
    }

    /// One write with this token in a transaction of its own.
    fn write(&mut self, token: &str, what: &str) -> Result<(), String> {
        self.must("BEGIN");
        self.must(&format!("SET LOCAL tiebreak.token = '{token}'"));
        let written = self.run(&format!("INSERT INTO orders VALUES ('{what}')"));
        self.must("COMMIT");
        written.map(|_| ())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const STALE: &str = "TB001";

#[test]
fn a_lower_token_none_and_a_broken_one_are_refused_whatever_the_statement() {
    let Some(server) = Server::start() else { return };
    let mut app = server.app();
    app.write("30064771072", "first").expect("the first");
    app.write("30064771072", "again").expect("the same leader");
    assert_eq!(app.write("30064771071", "late"), Err(STALE.into()));
    app.write("18446744073709551615", "the highest there is").expect("64 bits without a sign");
    for (token, state) in [("", "TB002"), ("-1", "TB003"), ("7x", "TB003"), ("18446744073709551616", "TB003")]
    {
        assert_eq!(app.write(token, "no"), Err(state.into()), "{token:?}");
    }
    assert_eq!(app.run("INSERT INTO orders VALUES ('no')"), Err("TB002".into()));
    for statement in ["UPDATE orders SET what = 'no'", "DELETE FROM orders", "TRUNCATE orders"] {
        assert_eq!(
            app.run(&format!("BEGIN; SET LOCAL tiebreak.token = '7'; {statement}")),
            Err(STALE.into()),
            "{statement}"
        );
        app.must("ROLLBACK");
    }
    assert_eq!(app.must("SELECT count(*) FROM orders"), ["3"], "whoever reads needs no token");
    assert_eq!(server.orders(), ["again", "first", "the highest there is"]);
}

#[test]
fn a_writer_can_neither_raise_the_token_by_hand_nor_switch_the_check_off() {
    let Some(server) = Server::start() else { return };
    let mut app = server.app();
    for statement in [
        "SELECT tiebreak.admit('shop', 9)",
        "UPDATE tiebreak.fence SET token = 0",
        "DELETE FROM tiebreak.fence",
        "SELECT tiebreak.protect('orders', 'other')",
        "ALTER TABLE orders DISABLE TRIGGER tiebreak_fence",
        "CREATE OR REPLACE TRIGGER tiebreak_fence BEFORE INSERT ON orders EXECUTE FUNCTION tiebreak.check_token('other')",
        "SET session_replication_role = replica",
    ] {
        assert_eq!(app.run(statement), Err("42501".into()), "{statement}");
    }
    let mut owner = server.owner();
    owner.must("GRANT TRIGGER ON orders TO app");
    assert_eq!(owner.run("SELECT tiebreak.protect('orders', 'shop')"), Err("TB004".into()));
    owner.must("SET session_replication_role = replica");
    assert_eq!(owner.run("INSERT INTO orders VALUES ('no')"), Err("TB002".into()));
}

/// Shows: what a real subscription brings is refused, row by row, whatever it does.
#[test]
fn what_logical_replication_brings_bears_no_token_and_is_refused() {
    let Some(server) = Server::start() else { return };
    let mut owner = server.owner();
    server.app().write("7", "ours").expect("it leads");
    owner.must("CREATE DATABASE elsewhere");
    let mut elsewhere = server.session_in("owner", "elsewhere");
    elsewhere.must(
        "CREATE TABLE orders (what text); ALTER TABLE orders REPLICA IDENTITY FULL;
         CREATE PUBLICATION orders FOR TABLE orders;
         SELECT pg_create_logical_replication_slot('orders', 'pgoutput');",
    );
    owner.must(&format!(
        "CREATE SUBSCRIPTION orders CONNECTION 'host={} user=owner dbname=elsewhere' PUBLICATION orders
         WITH (create_slot = false, slot_name = 'orders', copy_data = false)",
        server.place().display()
    ));
    let deadline = Instant::now() + DEADLINE;
    let mut refused = |so_far: u64| loop {
        let errors = owner.must("SELECT apply_error_count FROM pg_stat_subscription_stats");
        let errors: u64 = errors.first().map_or(0, |count| count.parse().expect("a number"));
        let there = server.orders();
        assert!(there == ["ours"], "it came through: {there:?}");
        if errors > so_far {
            return errors;
        }
        assert!(Instant::now() < deadline, "it is not refused, and does not come");
    };
    elsewhere.must("INSERT INTO orders VALUES ('theirs')");
    refused(0);
}

/// Shows: a writer that was replaced and goes on and on, in transactions that overlap, does not keep its successor out.
#[test]
fn a_successor_is_let_in_as_soon_as_those_before_it_have_ended_however_many_come_after() {
    let Some(server) = Server::start() else { return };
    let mut old = [server.app(), server.app()];
    let mut next = server.app();
    old[0].must("BEGIN; SET LOCAL tiebreak.token = '10'; INSERT INTO orders VALUES ('before')");
    next.must("BEGIN; SET LOCAL tiebreak.token = '11'");
    next.begin("INSERT INTO orders VALUES ('next')");
    let mut owner = server.owner();
    let waits = |owner: &mut Session, how_many: &str| {
        let deadline = Instant::now() + DEADLINE;
        while owner.must("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [how_many]
        {
            assert!(Instant::now() < deadline, "{how_many} wait");
        }
    };
    waits(&mut owner, "1");
    // One more of the old ones comes while the successor waits: it is behind it.
    old[1].must("BEGIN; SET LOCAL tiebreak.token = '10'");
    old[1].begin("INSERT INTO orders VALUES ('late')");
    waits(&mut owner, "2");
    old[0].must("INSERT INTO orders VALUES ('before, and goes on'); COMMIT");
    next.end_within(DEADLINE).expect("it is let in").expect("it leads");
    next.must("COMMIT");
    assert_eq!(old[1].end_within(DEADLINE).expect("it ends"), Err(STALE.into()));
}

#[test]
fn partitions_are_protected_with_their_parent_and_resources_are_apart() {
    let Some(server) = Server::start() else { return };
    server.owner().must(
        "CREATE TABLE bills (number int) PARTITION BY RANGE (number);
         CREATE TABLE bills_1 PARTITION OF bills FOR VALUES FROM (0) TO (100);
         GRANT INSERT ON bills, bills_1 TO app; SELECT tiebreak.protect('bills', 'bills');",
    );
    let mut app = server.app();
    app.write("7", "an order").expect("of the shop");
    for (token, table, outcome) in [
        ("3", "bills", Ok(())),
        ("4", "bills_1", Ok(())),
        ("3", "bills", Err(STALE)),
        ("3", "bills_1", Err(STALE)),
    ] {
        let written =
            app.run(&format!("BEGIN; SET LOCAL tiebreak.token = '{token}'; INSERT INTO {table} VALUES (1)"));
        assert_eq!(written.map(|_| ()), outcome.map_err(Into::into), "{token} into {table}");
        app.must("COMMIT");
    }
}

/// Shows: a transaction that was let through cannot be overtaken: the next leader waits for its end, and what comes later
/// with the old token is refused, at every isolation level.
#[test]
fn no_write_of_a_replaced_leader_commits_after_one_of_its_successor() {
    let Some(server) = Server::start() else { return };
    for (number, isolation) in (1_u64..).zip(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
        let (old, new) = (10 * number, 10 * number + 1);
        let (mut before, mut after) = (server.app(), server.app());
        before.write(&old.to_string(), &format!("{number} a")).expect("it leads");
        before.must(&format!("BEGIN ISOLATION LEVEL {isolation}; SET LOCAL tiebreak.token = '{old}'"));
        before.must(&format!("INSERT INTO orders VALUES ('{number} b')"));
        after.must(&format!("BEGIN ISOLATION LEVEL {isolation}; SET LOCAL tiebreak.token = '{new}'"));
        after.begin(&format!("INSERT INTO orders VALUES ('{number} c')"));
        assert_eq!(after.end_within(Duration::from_millis(300)), None, "{isolation}: it overtook");
        // The old one is still let through: its writes come before those of the new one.
        before.must(&format!("INSERT INTO orders VALUES ('{number} b')"));
        before.must("COMMIT");
        after.end_within(DEADLINE).expect("it goes on").expect("it leads");
        after.must("COMMIT");
        assert_eq!(before.write(&old.to_string(), "late"), Err(STALE.into()), "{isolation}");
    }
    // One that began before the token was raised, and looks at nothing before it writes.
    for (isolation, state) in
        [("READ COMMITTED", STALE), ("REPEATABLE READ", "40001"), ("SERIALIZABLE", "40001")]
    {
        let (mut before, mut after) = (server.app(), server.app());
        let token =
            server.owner().must("SELECT token FROM tiebreak.fence WHERE resource = 'shop'")[0].clone();
        let next = token.parse::<u64>().expect("a number") + 1;
        before.must(&format!(
            "BEGIN ISOLATION LEVEL {isolation}; SET LOCAL tiebreak.token = '{token}'; SELECT 1"
        ));
        after.write(&next.to_string(), "newer").expect("it leads");
        assert_eq!(before.run("INSERT INTO orders VALUES ('late')"), Err(state.into()), "{isolation}");
        before.must("ROLLBACK");
        assert_eq!(before.write(&token, "late"), Err(STALE.into()), "{isolation}");
    }
    assert!(!server.orders().contains(&"late".into()));
}

/// Shows: writers of one leader do not wait for one another, two that raise the token at once both get through, and a leader
/// that hangs in an open transaction is ended by the time-out that the script names.
#[test]
fn writers_of_one_leader_go_on_side_by_side_and_one_that_hangs_is_ended() {
    let Some(server) = Server::start() else { return };
    let (mut one, mut other) = (server.app(), server.app());
    one.write("5", "first").expect("it leads");
    for session in [&mut one, &mut other] {
        session.must("BEGIN; SET LOCAL tiebreak.token = '5'; INSERT INTO orders VALUES ('side by side')");
    }
    one.must("COMMIT");
    other.must("COMMIT");
    for session in [&mut one, &mut other] {
        session.must("BEGIN; SET LOCAL tiebreak.token = '6'");
    }
    one.must("INSERT INTO orders VALUES ('both raise')");
    other.begin("INSERT INTO orders VALUES ('both raise')");
    one.must("COMMIT");
    other.end_within(DEADLINE).expect("it goes on").expect("an equal token");
    other.must("COMMIT");

    server.owner().must("ALTER ROLE app SET idle_in_transaction_session_timeout = '1s'");
    let (mut hangs, mut next) = (server.app(), server.app());
    hangs.must("BEGIN; SET LOCAL tiebreak.token = '6'; INSERT INTO orders VALUES ('never committed')");
    next.write("7", "the next leader").expect("it does not wait for ever");
    assert!(hangs.run("COMMIT").is_err(), "it was ended");
    let orders = server.orders();
    assert!(!orders.contains(&"never committed".into()) && orders.contains(&"the next leader".into()));
}

/// Shows: among many writers with ever newer tokens, in the order in which they committed no token is below an earlier one.
#[test]
fn among_concurrent_writers_the_order_of_commits_never_goes_back() {
    let Some(server) = Server::start() else { return };
    // Each row notes when it was committed: a sequence is drawn last, while the resource is still locked.
    server.owner().must(
        "CREATE SEQUENCE commits; GRANT ALL ON SEQUENCE commits TO app;
         CREATE TABLE log (token numeric, at bigint); GRANT SELECT, INSERT, UPDATE ON log TO app; SELECT tiebreak.protect('log', 'log');",
    );
    std::thread::scope(|scope| {
        for writer in 0..6_u64 {
            let mut session = server.app();
            scope.spawn(move || {
                for step in 0..40 {
                    let token = step * 3 + writer % 4;
                    let sql = format!(
                        "BEGIN; SET LOCAL tiebreak.token = '{token}'; INSERT INTO log VALUES ({token}, 0);
                         UPDATE log SET at = nextval('commits') WHERE ctid = (SELECT max(ctid) FROM log WHERE token = {token} AND at = 0)"
                    );
                    let _ = session.run(&sql);
                    let _ = session.run("COMMIT");
                }
            });
        }
    });
    let backwards = server.owner().must(
        "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY at ROWS UNBOUNDED PRECEDING) AS highest FROM log
         WHERE at > 0) AS l WHERE token < highest",
    );
    assert_eq!(backwards, ["0"]);
    let rows = server.owner().must("SELECT count(DISTINCT token) > 5 FROM log");
    assert_eq!(rows, ["t"], "several tokens got through");
}
