//! The tables of a search, and what voters do: computed once, by the shipped code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use tiebreak::ids::Term;
use tiebreak::message::{Adoption, Kind, Part, Reply, Request, Standing, WitnessRecord};
use tiebreak::testing::{Ballot, Call, Rules, Witness, WitnessSettings};
use tiebreak::time::{Millis, Moment};

use crate::node::{Input, Node, member};
use crate::sight::{Gist, Sight, Words, gist, sight, small, term8, words};
use crate::table::{Map, Table};
use crate::talk::{Log, Message, WITNESS_LINK, bare, cluster_name, node, turned, witness_life};
use crate::world::{Bounds, Flight, TERMS_MAX, WRITES_MAX, World};

/// What a replica does with an input.
pub(crate) struct Turn {
    pub(crate) node: u32,
    pub(crate) says: Vec<u16>,
    pub(crate) led: u8,
    pub(crate) on_both: u8,
    pub(crate) told: Option<u8>,
    pub(crate) record_changed: bool,
    /// An assertion of the shipped code, or one of this search, about two successive states.
    pub(crate) broken: Option<String>,
}

/// What a witness does with a request.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) witness: u16,
    pub(crate) reply: Option<u16>,
    pub(crate) broken: Option<String>,
}

/// One step of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    Node(usize, Input),
    /// The same, but what is said leaves before the record is durable, and then comes the crash.
    Half(usize, Input),
    Ask(usize, u16),
    HalfAsk(usize, u16),
    LoseWitness,
    RestartWitness,
    RollWitness,
    ReplaceWitness,
}

pub(crate) type Next = Result<World, String>;

pub(crate) struct Model {
    pub(crate) bounds: Bounds,
    pub(crate) rules: Rules,
    /// Whether anything is dropped that can have no effect any more.
    pub(crate) tidies: bool,
    nodes: Table<Node>,
    sights: Vec<Sight>,
    witnesses: Table<Option<Witness>>,
    words: Vec<Option<Words>>,
    turned_witness: Map<u16, u16>,
    messages: Table<Message>,
    pub(crate) gists: Vec<Gist>,
    pub(crate) logs: Table<Log>,
    turns: Map<(u32, Input), Option<Rc<Turn>>>,
    answers: Map<(u16, u16, u8), Answer>,
    greetings: Map<(u16, u32, u8), u16>,
}

/// Nothing durable goes back: invariant 4, told by the search itself. (Where a rule is broken, that something goes
/// back is not enough: it has to do harm.)
fn went_back(before: &Ballot, after: &Ballot) -> Option<&'static str> {
    let (old, new) = (before.record(), after.record());
    if old.incarnation != new.incarnation {
        return None;
    }
    let given_up = matches!(new.standing, Standing::Resyncing(_)) && new.holds == Term::ZERO;
    if new.term < old.term {
        return Some("a term went back");
    }
    if new.holds < old.holds && !given_up {
        return Some("holds went back");
    }
    if new.adoption < old.adoption {
        return Some("an adoption went back");
    }
    if new.term == old.term && old.voted_for.is_some() && new.voted_for != old.voted_for {
        return Some("a vote was changed");
    }
    None
}

fn words_went_back(before: &WitnessRecord, after: &WitnessRecord) -> Option<&'static str> {
    if after.promised.term < before.promised.term {
        return Some("a promise went back");
    }
    if after.confirmed.term < before.confirmed.term {
        return Some("a confirmation went back");
    }
    if after.confirmed.term > after.promised.term {
        return Some("confirmed above promised");
    }
    if after.promised.term == before.promised.term
        && before.promised.to.is_some()
        && after.promised.to != before.promised.to
    {
        return Some("a term was promised twice");
    }
    None
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("an assertion failed").to_string()
}

// Making one, and the tables.
impl Model {
    pub(crate) fn new(bounds: Bounds, rules: Rules) -> Model {
        assert!(usize::from(bounds.terms) < TERMS_MAX && usize::from(bounds.writes) <= WRITES_MAX);
        let mut model = Model {
            bounds,
            rules,
            tidies: true,
            nodes: Table::new(),
            sights: Vec::new(),
            witnesses: Table::new(),
            words: vec![None],
            turned_witness: Map::default(),
            messages: Table::new(),
            gists: Vec::new(),
            logs: Table::new(),
            turns: Map::default(),
            answers: Map::default(),
            greetings: Map::default(),
        };
        model.witnesses.number(None);
        model.log(&Log::new());
        model
    }

    /// Whether messages that can have no effect any more are dropped. What voters do stays as it was found.
    pub(crate) fn tidies(&mut self, tidies: bool) {
        self.tidies = tidies;
    }

    pub(crate) fn sizes(&self) -> String {
        format!(
            "{} nodes, {} witnesses, {} messages",
            self.nodes.len(),
            self.witnesses.len(),
            self.messages.len()
        )
    }

    pub(crate) fn log(&mut self, log: &Log) -> u16 {
        u16::try_from(self.logs.number(log.clone()).0).expect("few logs within the bounds")
    }

    fn node(&mut self, node: Node) -> u32 {
        let (number, new) = self.nodes.number(node);
        if new {
            let log = self.log(&self.nodes.get(number).log.clone());
            self.sights.push(sight(self.nodes.get(number), log));
        }
        number
    }

    fn message(&mut self, message: Message) -> u16 {
        let (number, new) = self.messages.number(message);
        if new {
            self.gists.push(gist(self.messages.get(number)));
        }
        u16::try_from(number).expect("few kinds of messages within the bounds")
    }

    pub(crate) fn witness(&mut self, witness: &Witness) -> u16 {
        let plain = witness.clone().plain(|voter| voter);
        let of_it = words(&plain);
        let (number, new) = self.witnesses.number(Some(plain));
        if new {
            self.words.push(Some(of_it));
        }
        u16::try_from(number).expect("few states of a witness")
    }

    pub(crate) fn sight(&self, world: &World, side: usize) -> &Sight {
        &self.sights[world.nodes[side] as usize]
    }

    pub(crate) fn started(&self, record: WitnessRecord) -> Witness {
        let settings = WitnessSettings { strict_boot: self.bounds.strict_boot };
        Witness::start(Moment(0), record, settings, self.rules).0
    }

    /// The witness after it has started again, on the record of the other one.
    pub(crate) fn restarted(&mut self, witness: u16, on: u16) -> Option<u16> {
        let record =
            |number: u16| self.witnesses.get(u32::from(number)).as_ref().map(|witness| *witness.record());
        // Starts are told apart whatever an old record says of them.
        let started = self.started(WitnessRecord { boot: record(witness)?.boot, ..record(on)? });
        Some(self.witness(&started))
    }

    /// The witness after a replica has greeted it.
    pub(crate) fn greeted(&mut self, witness: u16, node: u32, side: usize) -> u16 {
        let key = (witness, node, small(side));
        if let Some(greeted) = self.greetings.get(&key) {
            return *greeted;
        }
        let ballot = &self.nodes.get(node).ballot;
        let mut from = bare(ballot.sender());
        if side == 1 {
            from.voter = turned(from.voter);
        }
        let request = Request::Hello(ballot.hello(Part::Witness));
        let Some(mut after) = self.witnesses.get(u32::from(witness)).clone() else { return witness };
        let _ = after.handle(Moment(0), &Call { link: WITNESS_LINK, from, request, fresh: 0 });
        let greeted = self.witness(&after);
        self.greetings.insert(key, greeted);
        greeted
    }

    pub(crate) fn words_of(&self, witness: u16) -> Option<&Words> {
        self.words[usize::from(witness)].as_ref()
    }

    /// A mature pair: both hold term 1, which one of them led; the witness is taken in; nobody leads.
    pub(crate) fn start(&mut self) -> World {
        let kind = if self.bounds.leadership { Kind::Leadership } else { Kind::Replicated };
        let nodes = [true, false].map(|led| member(led, kind, self.rules));
        let name = cluster_name();
        let blank = Witness::blank(node("w"), name, witness_life(0));
        let mut witness = self.started(blank);
        let admit = Request::Admit {
            term: Term(1),
            kind,
            adoption: Adoption { term: Term(1), ordinal: 0, incarnation: witness_life(0) },
            solo: false,
            longest_lease: Millis(0),
        };
        let requests = [Request::Hello(nodes[0].ballot.hello(Part::Witness)), admit];
        for request in requests {
            let from = bare(nodes[0].ballot.sender());
            let _ = witness.handle(Moment(0), &Call { link: WITNESS_LINK, from, request, fresh: 0 });
        }
        let nodes = nodes.map(|node| self.node(node));
        let witness = self.witness(&witness);
        let witness = self.greeted(witness, nodes[1], 1);
        World {
            nodes,
            witness: [witness, 0],
            image: 0,
            ahead: 0,
            written: 0,
            committed: self.log(&Log::new()),
            acknowledged: [0; WRITES_MAX],
            leaders: [0; TERMS_MAX],
            left: self.bounds.faults,
            flight: [Flight::EMPTY; 2],
        }
    }

    pub(crate) fn acknowledged(&self, world: &World) -> usize {
        self.logs.get(u32::from(world.committed)).len()
    }

    pub(crate) fn turn(&mut self, number: u32, input: Input) -> Option<Rc<Turn>> {
        if let Some(turn) = self.turns.get(&(number, input)) {
            return turn.clone();
        }
        let turn = self.compute_turn(number, input).map(Rc::new);
        self.turns.insert((number, input), turn.clone());
        turn
    }

    fn compute_turn(&mut self, number: u32, input: Input) -> Option<Turn> {
        let before = self.nodes.get(number);
        let message = match input {
            Input::Hear { message, .. } => Some(self.messages.get(u32::from(message))),
            _ => None,
        };
        let ordinals = self.bounds.ordinals;
        let effect = match catch_unwind(AssertUnwindSafe(|| before.after(input, message, ordinals))) {
            Ok(effect) => effect?,
            Err(panic) => {
                return Some(Turn {
                    node: number,
                    says: Vec::new(),
                    led: 0,
                    on_both: 0,
                    told: None,
                    record_changed: false,
                    broken: Some(panic_text(&*panic)),
                });
            }
        };
        let kept = self.rules == Rules::KEPT;
        let broken = went_back(&before.ballot, &effect.node.ballot).filter(|_| kept).map(String::from);
        let record_changed = before.ballot.record() != effect.node.ballot.record();
        let says = effect.says.into_iter().map(|message| self.message(message)).collect();
        Some(Turn {
            node: self.node(effect.node),
            says,
            led: effect.led.map_or(0, term8),
            on_both: small(effect.on_both),
            told: effect.told.map(small),
            record_changed,
            broken,
        })
    }

    pub(crate) fn answer(&mut self, witness: u16, message: u16, side: usize) -> Answer {
        let key = (witness, message, small(side));
        if let Some(answer) = self.answers.get(&key) {
            return answer.clone();
        }
        let answer = self.compute_answer(witness, message, side);
        self.answers.insert(key, answer.clone());
        answer
    }

    fn compute_answer(&mut self, number: u16, message: u16, side: usize) -> Answer {
        let Some(before) = self.witnesses.get(u32::from(number)).clone() else {
            return Answer { witness: number, reply: None, broken: None };
        };
        let Message::Ask { from, start, request, .. } = self.messages.get(u32::from(message)).clone() else {
            unreachable!("only a request reaches a witness");
        };
        // The witness knows the two by one pair of names: those of the first.
        let mut absolute = from;
        if side == 1 {
            absolute.voter = turned(from.voter);
        }
        let mut after = before.clone();
        let call = Call { link: WITNESS_LINK, from: absolute, request, fresh: 0 };
        let step = catch_unwind(AssertUnwindSafe(|| after.handle(Moment(0), &call)));
        let step = match step {
            Ok(step) => step,
            Err(panic) => {
                return Answer { witness: number, reply: None, broken: Some(panic_text(&*panic)) };
            }
        };
        if matches!(step.reply, Reply::Refused(_)) {
            return Answer { witness: number, reply: None, broken: None };
        }
        // Leases are no matter of this search: only that the witness has raised its promise is.
        let is_lease = matches!(step.reply, Reply::Renewed { .. });
        let kept = self.rules == Rules::KEPT;
        let broken = words_went_back(before.record(), after.record()).filter(|_| kept).map(String::from);
        let told =
            Message::Told { life: from.voter.incarnation, from: bare(step.sender), start, reply: step.reply };
        let reply = (!is_lease).then(|| self.message(told));
        Answer { witness: self.witness(&after), reply, broken }
    }

    /// The witness as it would be with the names of the replicas changed over.
    fn turned_witness(&mut self, number: u16) -> u16 {
        if let Some(turned) = self.turned_witness.get(&number) {
            return *turned;
        }
        let Some(witness) = self.witnesses.get(u32::from(number)).clone() else { return number };
        let turned = self.witness(&witness.plain(turned));
        self.turned_witness.insert(number, turned);
        self.turned_witness.insert(turned, number);
        turned
    }

    /// The two replicas are kept in the order of their states: a world and the one in which they have changed places
    /// are one. Says whether they changed places.
    pub(crate) fn canonical(&mut self, world: &World) -> (World, bool) {
        let [first, second] = world.nodes;
        if first < second {
            return (*world, false);
        }
        let witness = world.witness.map(|number| self.turned_witness(number));
        let image = self.turned_witness(world.image);
        let turned = world.turned(witness, image);
        if first > second {
            return (turned, true);
        }
        let (mut one, mut other) = (Vec::new(), Vec::new());
        world.write(&mut one);
        turned.write(&mut other);
        if one <= other { (*world, false) } else { (turned, true) }
    }
}

// For people.
impl Model {
    pub(crate) fn name(&self, world: &World, name: Move, turned: bool) -> String {
        let who = |side: usize| ["a", "b"][side ^ usize::from(turned)];
        match name {
            Move::Node(side, input) => format!("{}: {}", who(side), self.input_name(input)),
            Move::Half(side, input) => {
                format!("{}: {}, and crashes before it is durable", who(side), self.input_name(input))
            }
            Move::Ask(side, message) => {
                format!("w hears {} ask {}", who(side), self.message_name(message))
            }
            Move::HalfAsk(side, message) => {
                format!(
                    "w hears {} ask {}, and crashes before it is durable",
                    who(side),
                    self.message_name(message)
                )
            }
            Move::RestartWitness => "w starts again".into(),
            Move::RollWitness => "w starts again on an earlier record".into(),
            Move::LoseWitness => format!("w loses its disk ({} writes)", world.written),
            Move::ReplaceWitness => format!("w is replaced and lives on ({} writes)", world.written),
        }
    }

    fn input_name(&self, input: Input) -> String {
        match input {
            Input::Hear { message, earlier } => {
                let late = if earlier { " (of an earlier link)" } else { "" };
                format!("hears {}{late}", self.message_name(message))
            }
            other => format!("{other:?}"),
        }
    }

    fn message_name(&self, message: u16) -> String {
        match self.messages.get(u32::from(message)) {
            Message::Peer { body, .. } => format!("{body:?}"),
            Message::Ask { request, slot, .. } => format!("{request:?} of witness {slot}"),
            Message::Told { reply, .. } => format!("the witness say {reply:?}"),
        }
    }
}
