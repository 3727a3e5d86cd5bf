//! Two nodes, their clients, the rights to act, the network, and what must never be.

use std::ops::AddAssign;
use std::time::Duration;

use tiebreak::ids::{Incarnation, LockName, Term, Token, VoterId};
use tiebreak::message::{NameRefusal, NameReply, NameRequest};
use tiebreak::testing::{Hold, NameRules, Table};
use tiebreak::time::{Millis, Moment};

const CLIENTS: usize = 4;
const NAMES: usize = 2;
const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// What happened in a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub tenures: u64,
    pub holds: u64,
    pub renewals: u64,
    pub refused: u64,
    pub ran_out: u64,
    pub lost: u64,
    pub revoked: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.tenures += other.tenures;
        self.holds += other.holds;
        self.renewals += other.renewals;
        self.refused += other.refused;
        self.ran_out += other.ran_out;
        self.lost += other.lost;
        self.revoked += other.revoked;
    }
}

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

struct Node {
    table: Table,
    /// Its clock: nanoseconds in a million real ones, and what it showed at the start.
    rate: u64,
    offset: u64,
    /// Until then (in real time) it takes nothing.
    paused: u64,
}

impl Node {
    fn clock(&self, real: u64) -> Moment {
        let ran = u128::from(real) * u128::from(self.rate) / 1_000_000;
        Moment(self.offset + u64::try_from(ran).expect("short runs"))
    }
}

/// The right to act: at most one at a time.
#[derive(Clone, Copy)]
struct Right {
    node: usize,
    term: u32,
    /// In real time; `u64::MAX` for a sole leader.
    until: u64,
}

enum Client {
    Idle,
    Asks { name: usize, nonce: u64, since: u64 },
    Holds { name: usize, hold: Hold, taken_back: bool },
}

enum Packet {
    Ask { client: usize, to: usize, asked: Moment, request: NameRequest },
    Answer { client: usize, asked: Moment, of: NameRequest, reply: NameReply },
}

/// Everything.
pub struct World {
    real: u64,
    dice: Dice,
    rules: NameRules,
    nodes: [Node; 2],
    right: Option<Right>,
    highest: u32,
    clients: Vec<Client>,
    network: Vec<(u64, Packet)>,
    tokens: [Token; NAMES],
    calm: bool,
    paused_often: bool,
    pub tally: Tally,
}

fn lock(name: usize) -> LockName {
    ["shard-1", "shard-2"][name].parse().expect("a name")
}

fn place(name: LockName) -> usize {
    usize::from(name == lock(1))
}

fn voter(node: usize) -> VoterId {
    VoterId { node: ["a", "b"][node].parse().expect("a name"), incarnation: Incarnation(node as u128 + 1) }
}

/// Clients live on the nodes in turns.
fn home(client: usize) -> usize {
    client % 2
}

impl World {
    pub fn new(seed: u64, rules: NameRules) -> World {
        let mut dice = Dice(seed);
        let nodes = [0, 1].map(|_| Node {
            table: Table::new(rules),
            // Two of them are never farther apart than the bound on the rate error allows.
            rate: [995_100, 1_004_900][usize::try_from(dice.below(2)).expect("small")],
            offset: dice.below(1000) * SECOND,
            paused: 0,
        });
        World {
            real: 0,
            dice,
            rules,
            nodes,
            right: None,
            highest: 0,
            clients: (0..CLIENTS).map(|_| Client::Idle).collect(),
            network: Vec::new(),
            tokens: [Token::default(); NAMES],
            calm: false,
            paused_often: false,
            tally: Tally::default(),
        }
    }

    /// With a leader that stays, and a network that only takes its time.
    pub fn calm(seed: u64, rules: NameRules) -> World {
        let mut world = World { calm: true, ..World::new(seed, rules) };
        world.highest = 1;
        world.right = Some(Right { node: 0, term: 1, until: u64::MAX });
        world.tally.tenures = 1;
        world
    }

    /// The clocks as far apart as they may be, a leader that stays, a quick network; and the node with the slower clock is
    /// paused again and again: what it holds is asked for in the very moment in which it ends.
    pub fn apart(seed: u64, rules: NameRules) -> World {
        let mut world = World { paused_often: true, ..World::calm(seed, rules) };
        (world.nodes[0].rate, world.nodes[1].rate) = (1_004_900, 995_100);
        world
    }

    /// Time passes, and something happens.
    pub fn step(&mut self) -> Result<(), String> {
        self.real += self.dice.below(8 * MILLI);
        self.check()?;
        if !self.calm {
            self.turn_of_leaders();
        }
        if self.paused_often && self.real >= self.nodes[1].paused && self.dice.one_in(300) {
            self.nodes[1].paused = self.real + 3 * SECOND;
        }
        self.deliver()?;
        let client = usize::try_from(self.dice.below(CLIENTS as u64)).expect("small");
        self.client_acts(client);
        self.check()
    }

    fn turn_of_leaders(&mut self) {
        let real = self.real;
        if self.dice.one_in(1_000) {
            let node = usize::try_from(self.dice.below(2)).expect("small");
            self.nodes[node].paused = real + self.dice.below(9 * SECOND);
        }
        if self.dice.one_in(3_000) {
            // Its life ends, and with it whatever right it had.
            let node = usize::try_from(self.dice.below(2)).expect("small");
            self.nodes[node].table = Table::new(self.rules);
            self.nodes[node].paused = 0;
            self.right = self.right.filter(|right| right.node != node);
            self.drop_clients_of(node);
        }
        match self.right {
            Some(right) if real < right.until => self.leader_goes_on(right),
            lapsed => {
                if self.dice.one_in(25) {
                    // The same term again, if nobody had another one since; or somebody new.
                    let span = SECOND / 2 + self.dice.below(6 * SECOND);
                    let until = if self.dice.one_in(4) { u64::MAX } else { real + span };
                    let again = self.dice.one_in(3);
                    self.right = Some(match lapsed {
                        Some(right) if again => Right { until: real + span, ..right },
                        _ => {
                            self.highest += 1 + u32::from(self.dice.one_in(5));
                            let node = usize::try_from(self.dice.below(2)).expect("small");
                            // Perhaps it slept through everything since its last leadership.
                            self.nodes[node].paused = 0;
                            Right { node, term: self.highest, until }
                        }
                    });
                    self.tally.tenures += 1;
                }
            }
        }
        for node in 0..2 {
            if self.dice.one_in(3) {
                self.observe(node);
            }
        }
    }

    fn leader_goes_on(&mut self, right: Right) {
        if self.real < self.nodes[right.node].paused {
            return;
        }
        let soon = self.real + SECOND / 2 + self.dice.below(3 * SECOND);
        match self.dice.below(1_600) {
            // It opens another term, and is paired from then on.
            0 => {
                self.highest += 1;
                self.right = Some(Right { term: self.highest, until: soon, ..right });
            }
            // It goes on alone.
            1 => self.right = Some(Right { until: u64::MAX, ..right }),
            // It resigns, and the other one leads at once.
            2..4 => {
                self.right = Some(Right { until: self.real, ..right });
                self.observe(right.node);
                if self.dice.one_in(2) {
                    self.highest += 1;
                    self.nodes[1 - right.node].paused = 0;
                    self.right = Some(Right { node: 1 - right.node, term: self.highest, until: soon });
                    self.tally.tenures += 1;
                }
            }
            4..60 if right.until != u64::MAX => {
                self.right = Some(Right { until: right.until.max(soon), ..right });
            }
            _ => {}
        }
        // What a leader does itself it knows at once.
        self.observe(right.node);
    }

    /// A node that starts again holds nothing: its clients went with it.
    fn drop_clients_of(&mut self, node: usize) {
        for client in 0..CLIENTS {
            if home(client) == node {
                self.clients[client] = Client::Idle;
            }
        }
    }

    fn observe(&mut self, node: usize) {
        if self.real < self.nodes[node].paused {
            return;
        }
        let now = self.nodes[node].clock(self.real);
        let right = self.right.filter(|right| right.node == node && self.real < right.until);
        let right = right.map(|right| {
            let until = match right.until {
                u64::MAX => Moment::FOREVER,
                until => self.nodes[node].clock(until),
            };
            (Term(right.term), until)
        });
        self.nodes[node].table.observe(now, right);
    }

    fn send(&mut self, packet: impl Fn() -> Packet) {
        if self.calm {
            let after = self.dice.below(if self.paused_often { 2 } else { 20 } * MILLI);
            self.network.push((self.real + after, packet()));
            return;
        }
        let copies = [0, 1, 1, 1, 1, 1, 1, 1, 2, 2][usize::try_from(self.dice.below(10)).expect("small")];
        for _ in 0..copies {
            let after = match self.dice.below(10) {
                0 => self.dice.below(4 * SECOND),
                1 | 2 => self.dice.below(300 * MILLI),
                _ => self.dice.below(4 * MILLI),
            };
            self.network.push((self.real + after, packet()));
        }
    }

    fn deliver(&mut self) -> Result<(), String> {
        let mut at = 0;
        while at < self.network.len() {
            let (due, packet) = &self.network[at];
            let to = match packet {
                Packet::Ask { to, .. } => *to,
                Packet::Answer { client, .. } => home(*client),
            };
            if *due > self.real || self.real < self.nodes[to].paused {
                at += 1;
                continue;
            }
            match self.network.swap_remove(at).1 {
                Packet::Ask { client, to, asked, request } => {
                    self.observe(to);
                    let now = self.nodes[to].clock(self.real);
                    let reply = self.nodes[to].table.handle(now, voter(home(client)), &request);
                    self.send(|| Packet::Answer { client, asked, of: request, reply });
                }
                Packet::Answer { client, asked, of, reply } => self.heard(client, asked, of, reply)?,
            }
            self.check()?;
        }
        Ok(())
    }

    /// A client hears an answer to one of its questions: perhaps late, perhaps again.
    fn heard(
        &mut self,
        client: usize,
        asked: Moment,
        of: NameRequest,
        reply: NameReply,
    ) -> Result<(), String> {
        let now = self.nodes[home(client)].clock(self.real);
        let (rules, is_late) =
            (self.rules, |nonce| matches!(of, NameRequest::Acquire { nonce: n, .. } if n != nonce));
        match (&mut self.clients[client], reply) {
            (Client::Asks { name, nonce, .. }, NameReply::Granted { token }) if !is_late(*nonce) => {
                let NameRequest::Acquire { lease, .. } = of else { return Ok(()) };
                let name = *name;
                let Some(hold) = Hold::granted(asked, now, token, lease.span(), rules) else {
                    self.clients[client] = Client::Idle;
                    return Ok(());
                };
                if token <= self.tokens[name] {
                    return Err(format!("{token:?} of {} after {:?}", lock(name), self.tokens[name]));
                }
                self.tokens[name] = token;
                self.tally.holds += 1;
                self.clients[client] = Client::Holds { name, hold, taken_back: false };
            }
            (Client::Asks { nonce, .. }, NameReply::Refused(_)) if !is_late(*nonce) => {
                self.tally.refused += 1;
                self.clients[client] = Client::Idle;
            }
            (Client::Holds { hold, .. }, NameReply::Renewed { token }) if token == hold.token() => {
                self.tally.renewals += u64::from(hold.renewed(asked, now));
            }
            (Client::Holds { hold, taken_back, .. }, NameReply::Refused(why)) => {
                if !matches!(of, NameRequest::Renew { token, .. } if token == hold.token()) {
                    return Ok(());
                }
                match why {
                    NameRefusal::Revoked => *taken_back = true,
                    NameRefusal::Lost => {
                        self.tally.lost += 1;
                        self.clients[client] = Client::Idle;
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn client_acts(&mut self, client: usize) {
        let node = home(client);
        if self.real < self.nodes[node].paused {
            return;
        }
        let now = self.nodes[node].clock(self.real);
        self.observe(node);
        let to = if self.nodes[node].table.leads(now) { node } else { 1 - node };
        match &mut self.clients[client] {
            Client::Idle => {
                let name = usize::try_from(self.dice.below(NAMES as u64)).expect("small");
                let nonce = self.dice.next();
                let lease = if self.dice.one_in(3) { Millis(300) } else { Millis(2000) };
                self.clients[client] = Client::Asks { name, nonce, since: self.real };
                let request = NameRequest::Acquire { name: lock(name), lease, nonce };
                self.send(|| Packet::Ask { client, to, asked: now, request });
            }
            Client::Asks { since, .. } => {
                // Most give up soon, and try again.
                if self.real - *since > if self.dice.one_in(4) { 50 * MILLI } else { SECOND } {
                    self.clients[client] = Client::Idle;
                }
            }
            Client::Holds { name, hold, taken_back } => {
                let (name, token) = (lock(*name), hold.token());
                if !hold.is_valid(now) {
                    self.tally.ran_out += u64::from(!*taken_back);
                    self.clients[client] = Client::Idle;
                } else if self.dice.one_in(if *taken_back { 8 } else { 150 }) {
                    self.clients[client] = Client::Idle;
                    self.send(|| Packet::Ask {
                        client,
                        to,
                        asked: now,
                        request: NameRequest::Release { name, token },
                    });
                } else if now >= hold.renew_at() && !*taken_back {
                    hold.renewing(now);
                    let request = NameRequest::Renew { name, token };
                    self.send(|| Packet::Ask { client, to, asked: now, request });
                } else if self.dice.one_in(150) {
                    self.tally.revoked += 1;
                    let name = lock(place(name));
                    self.send(|| Packet::Ask {
                        client,
                        to,
                        asked: now,
                        request: NameRequest::Revoke { name },
                    });
                }
            }
        }
    }

    /// What must never be.
    fn check(&self) -> Result<(), String> {
        let mut holder = [None; NAMES];
        for (client, state) in self.clients.iter().enumerate() {
            let Client::Holds { name, hold, .. } = state else { continue };
            if !hold.is_valid(self.nodes[home(client)].clock(self.real)) {
                continue;
            }
            if let Some((other, token)) = holder[*name].replace((client, hold.token())) {
                return Err(format!(
                    "after {:?} {} is held by clients {other} ({token:?}) and {client} ({:?})",
                    Duration::from_nanos(self.real),
                    lock(*name),
                    hold.token()
                ));
            }
        }
        Ok(())
    }
}
