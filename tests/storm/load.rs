//! The clients: writers that follow whoever acknowledges, and one reader at each replica, so that a deposed leader is
//! always asked. And the protected resource that the leader writes to.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tiebreak::fence::{Gate, GateError};
use tiebreak::ids::Token;
use tiebreak::testing::clock::Clock;

use crate::cluster::NAMES;
use crate::dice::Dice;
use crate::history::{History, Operation};

const WRITERS: usize = 4;
/// One in so many turns of a reader asks for a late write to the resource instead: the lease is checked at once, and the
/// write leaves so much later.
const TURNS_PER_LATE_WRITE: u64 = 60;
const LATE_MS_MAX: u64 = 3000;
/// Few, so that reads and writes meet.
const KEYS: u64 = 8;
/// What takes longer has an unknown outcome.
const PATIENCE: Duration = Duration::from_millis(700);
/// Between two operations of one client: the storm is about faults, not about load.
const PACE: Duration = Duration::from_millis(5);
const FRAME_BYTES_MAX: u32 = 256 << 20;

fn send(to: &mut TcpStream, message: &Value) -> io::Result<()> {
    let body = message.to_string();
    let mut frame = u32::try_from(body.len()).map_err(io::Error::other)?.to_be_bytes().to_vec();
    frame.extend(body.as_bytes());
    to.write_all(&frame)
}

fn receive(from: &mut TcpStream) -> io::Result<Value> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("the frame is too long"));
    }
    let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

fn connect(server: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// One request on a connection of its own.
pub fn ask(server: SocketAddr, request: &Value, patience: Duration) -> io::Result<Value> {
    let mut stream = connect(server, patience)?;
    send(&mut stream, request)?;
    receive(&mut stream)
}

/// The clients, until it is dropped.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    history: Arc<Mutex<History>>,
}

impl Load {
    pub fn start(servers: [SocketAddr; 2], seed: u64) -> Load {
        let (stop, history) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(History::default())));
        let next = Arc::new(AtomicU64::new(1));
        let client = |number: u64, turns: Turns| Client {
            servers,
            turns,
            dice: Dice(seed.wrapping_add(number)),
            stop: stop.clone(),
            history: history.clone(),
            next: next.clone(),
        };
        let mut clients: Vec<Client> =
            (0..WRITERS).map(|number| client(number as u64, Turns::Writes { at: number % 2 })).collect();
        clients.extend([0, 1].map(|node| client(100 + node as u64, Turns::Reads { at: node })));
        let threads = clients.into_iter().map(|client| std::thread::spawn(|| client.run())).collect();
        Load { stop, threads, history }
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Copy)]
enum Turns {
    /// Writes to whoever acknowledged last.
    Writes { at: usize },
    /// Reads from this one, whoever leads.
    Reads { at: usize },
}

struct Client {
    servers: [SocketAddr; 2],
    turns: Turns,
    dice: Dice,
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<History>>,
    next: Arc<AtomicU64>,
}

impl Client {
    fn run(mut self) {
        let mut stream = None;
        while !self.stop.load(Ordering::Acquire) {
            let served = match self.turns {
                Turns::Writes { at } => self.write(&mut stream, at),
                Turns::Reads { at } => self.read(&mut stream, at),
            };
            if served.is_err() {
                stream = None;
                if let Turns::Writes { at } = &mut self.turns {
                    *at = 1 - *at;
                }
            }
            std::thread::sleep(PACE);
        }
    }

    fn exchange(&self, stream: &mut Option<TcpStream>, at: usize, request: &Value) -> io::Result<Value> {
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(connect(self.servers[at], PATIENCE)?),
        };
        send(stream, request)?;
        receive(stream)
    }

    fn remember(&self, operation: Operation) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).operations.push(operation);
    }

    fn write(&mut self, stream: &mut Option<TcpStream>, at: usize) -> io::Result<()> {
        let value = self.next.fetch_add(1, Ordering::Relaxed);
        let key = self.dice.between(0, KEYS - 1);
        let request = json!({ "Put": { "id": value, "key": format!("k{key}"), "value": value.to_string() } });
        let start = Clock.now().0;
        let answer = self.exchange(stream, at, &request);
        let end = Clock.now().0;
        let term = answer.as_ref().ok().and_then(|answer| answer["Acknowledged"]["term"].as_u64());
        self.remember(Operation {
            key: u8::try_from(key).expect("few keys"),
            value,
            write: true,
            start,
            end: term.map(|_| end),
            node: at,
            term: u32::try_from(term.unwrap_or(0)).expect("terms have 32 bits"),
        });
        term.map(|_| ()).ok_or_else(|| io::Error::other("not acknowledged"))
    }

    fn read(&mut self, stream: &mut Option<TcpStream>, at: usize) -> io::Result<()> {
        if self.dice.between(1, TURNS_PER_LATE_WRITE) == 1 {
            let late = json!({ "TouchAfter": { "millis": self.dice.between(0, LATE_MS_MAX) } });
            return self.exchange(stream, at, &late).map(drop);
        }
        let key = self.dice.between(0, KEYS - 1);
        let start = Clock.now().0;
        let answer = self.exchange(stream, at, &json!({ "Get": { "key": format!("k{key}") } }))?;
        let end = Clock.now().0;
        // "Elsewhere" is an answer as well, and says nothing.
        if let Some(value) = answer.get("Value") {
            let value = value.as_str().map_or(Ok(0), str::parse).map_err(io::Error::other)?;
            let key = u8::try_from(key).expect("few keys");
            self.remember(Operation { key, value, write: false, start, end: Some(end), node: at, term: 0 });
        }
        Ok(())
    }
}

/// What the leader of the cluster may write to, behind the shipped gate.
pub struct Resource {
    pub address: SocketAddr,
    admitted: Arc<Mutex<Admitted>>,
}

#[derive(Debug, Default, Clone)]
pub struct Admitted {
    /// Who wrote, with which token, each stretch once.
    pub actors: Vec<(u64, String)>,
    pub writes: u64,
    pub refused: u64,
    pub wrong: Vec<String>,
}

impl Resource {
    pub fn serve(directory: &Path) -> Resource {
        let state = directory.join("gate");
        Gate::create(&state).expect("a new gate");
        let gate = Arc::new(Gate::open(&state).expect("a gate"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a bound port");
        let admitted = Arc::new(Mutex::new(Admitted::default()));
        let shared = admitted.clone();
        // It ends with the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (gate, admitted) = (gate.clone(), shared.clone());
                std::thread::spawn(move || touched(stream, &gate, &admitted));
            }
        });
        Resource { address, admitted }
    }

    pub fn admitted(&self) -> Admitted {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn touched(mut stream: TcpStream, gate: &Gate, admitted: &Mutex<Admitted>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let Ok(touch) = receive(&mut stream) else { return };
    let (Some(token), Some(by)) = (touch["token"].as_u64(), touch["by"].as_str()) else { return };
    assert!(NAMES.contains(&by), "{by} is no node");
    let written = gate.admit_and(Token(token), || {
        let mut admitted = admitted.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.writes += 1;
        match admitted.actors.last() {
            Some((last, who)) if *last == token && who == by => {}
            Some((last, who)) if *last >= token => {
                let wrong = format!("{by} wrote with token {token} after {who} with {last}");
                admitted.wrong.push(wrong);
            }
            _ => admitted.actors.push((token, by.to_owned())),
        }
        json!({ "Written": { "count": admitted.writes } })
    });
    let answer = match written {
        Ok(answer) => answer,
        Err(GateError::Stale(stale)) => {
            admitted.lock().unwrap_or_else(PoisonError::into_inner).refused += 1;
            json!({ "Refused": { "offered": stale.offered.0, "highest": stale.highest.0 } })
        }
        Err(_) => return,
    };
    let _ = send(&mut stream, &answer);
}
