//! The shell of one process: it hands the voter one thing at a time, syncs the record, and lets go of what the record
//! justifies; it shows views to the data layer and does what that wants.

use tiebreak::message::{Hello, Part, Record, Refusal, Reply, Request};
use tiebreak::testing::{Call, Input, Rule, View};
use tiebreak::time::Moment;

use super::data::Act;
use super::disks::End;
use super::history::Reading;
use super::net::{Packet, link};
use super::node::{Node, Release, Voter, Work};
use super::oracle::{Oracle, Shown};
use super::{Event, MS, NAMES, W, World, seen};

impl World {
    /// Handles what is queued, unless a sync is under way: that is waited for, and then everything that came
    /// meanwhile shares the next one.
    pub(super) fn work(&mut self, node: usize) {
        while Node::may_run(&self.nodes[node])
            && !self.nodes[node].queue.is_empty()
            && self.violation.is_none()
        {
            let mut record = None;
            let mut releases = Vec::new();
            while let Some(work) = self.nodes[node].queue.pop_front() {
                let (changed, release) = self.handle(node, work);
                record = changed.or(record);
                releases.extend(release);
            }
            self.settle(node, record, releases);
        }
        self.schedule_wake(node);
    }

    /// Does what is due by now.
    pub(super) fn tick(&mut self, node: usize) {
        self.nodes[node].queue.push_back(Work::Input(Input::Tick));
        self.work(node);
    }

    fn handle(&mut self, node: usize, work: Work) -> (Option<Record>, Option<Release>) {
        let now = self.nodes[node].clock(self.now);
        let crosses = self.crosses(node);
        let greeting = match &work {
            Work::SayHello { connection } if self.connections[*connection].other(node) >= W => Part::Witness,
            _ => Part::Replica,
        };
        let n = &mut self.nodes[node];
        match (&mut n.voter, work) {
            (Voter::Witness(witness), Work::Requested { connection, sender, request }) => {
                let fresh = n.dice.wide();
                let call = Call { link: link(connection), from: sender, request, fresh };
                let step = witness.handle(now, &call);
                let answer = Some((connection, step.reply));
                let release = Release { answer, ..Release::nothing(step.sender) };
                (step.record.map(Record::Witness), Some(release))
            }
            (Voter::Witness(witness), Work::Over { connection }) => {
                witness.link_down(link(connection));
                (None, None)
            }
            (Voter::Replica(replica), Work::SayHello { connection }) => {
                let hello = Hello { nonce: connection as u64, ..replica.ballot().hello(greeting) };
                let hello = Some((connection, hello));
                (None, Some(Release { hello, ..Release::nothing(replica.ballot().sender()) }))
            }
            (Voter::Replica(replica), Work::Input(Input::Asked { link, request: Request::Hello(_), .. }))
                if crosses =>
            {
                let sender = replica.ballot().sender();
                let connection = usize::try_from(link.0).expect("links are connections");
                let answer = Some((connection, Reply::Refused(Refusal::Crossing)));
                // Whatever is taken without the voter is followed by it.
                let step = replica.handle(now, Input::Tick);
                let mut release = Release { answer, ..Release::nothing(sender) };
                release.asks = step.outputs.asks;
                release.view = Some(step.outputs.view);
                (step.record.map(Record::Replica), Some(release))
            }
            (Voter::Replica(replica), Work::Input(input)) => {
                let asked_on = match &input {
                    Input::Asked { link, .. } => usize::try_from(link.0).ok(),
                    _ => None,
                };
                let command = is_command(&input).then(|| input.clone());
                let durable = if let Input::Durable(position) = &input { Some(*position) } else { None };
                let step = replica.handle(now, input);
                if let Some(position) = durable {
                    n.data.told_durable(position);
                }
                let view = step.outputs.view;
                if view.authority().is_none() && n.shown.is_some_and(|shown| shown.authority().is_some()) {
                    // A right that is lost is lost at once, before the record is written.
                    seen::role(&mut self.seen, n.shown.as_ref(), &view);
                    n.shown = Some(view);
                    self.drain(node);
                }
                let release = Release {
                    sender: step.outputs.sender,
                    answer: asked_on.zip(step.outputs.answer),
                    asks: step.outputs.asks,
                    hello: None,
                    view: Some(view),
                    command: command.map(|command| (command, step.outputs.taken)),
                };
                (step.record.map(Record::Replica), Some(release))
            }
            (Voter::Replica(_), Work::Data { connection, term, body }) => {
                if let Some(view) = n.shown {
                    let before = n.data.log.len();
                    n.data.hear(link(connection), term, &body, now, &view);
                    debug_assert!(n.data.log.len() >= before, "nothing is destroyed by a message");
                }
                self.drain(node);
                (None, None)
            }
            (Voter::Replica(_), Work::Read(reading)) => {
                self.serve_read(node, reading);
                (None, None)
            }
            _ => (None, None),
        }
    }

    /// The value first, then another look at the lease: only if that still runs, in the same term, is it answered.
    fn serve_read(&mut self, node: usize, reading: Reading) {
        let found = self.shown(node).and_then(|shown| Some((shown.acts?.term(), shown.reads?)));
        match (reading.found, found) {
            (None, Some(_)) => {
                let run = self.nodes[node].run;
                let delay = self.nodes[node].dice.between(0, self.plan.beat);
                self.at(delay, Event::Read { node, run, reading: Reading { found, ..reading } });
            }
            (Some((term, upto)), Some((still, _))) if term == still => {
                let verdict = self.history.end(NAMES[node], reading, upto);
                if !self.oracle.past_the_bound {
                    self.fail(verdict);
                }
            }
            _ => self.history.refused += 1,
        }
    }

    /// Syncs the record, if there is one, and then lets go of what it justifies.
    pub(super) fn settle(&mut self, node: usize, record: Option<Record>, releases: Vec<Release>) {
        let Some(record) = record else {
            self.release(node, releases);
            return;
        };
        let n = &mut self.nodes[node];
        n.syncing = Some(record);
        let run = n.run;
        let delay = n.dice.between(self.plan.record_sync.0, self.plan.record_sync.1);
        self.at(delay, Event::RecordSynced { node, run });
        if self.plan.rules.keep(Rule::SyncBeforeReply) {
            self.nodes[node].held.extend(releases);
        } else {
            self.release(node, releases);
        }
    }

    pub(super) fn write_disk(&mut self, node: usize, record: Record) {
        let verdict = Oracle::recorded(&self.nodes[node].disk, &record);
        let before = self.nodes[node].id();
        self.nodes[node].disk = record;
        if self.nodes[node].up && self.nodes[node].id() != before {
            // It begins again as blank, on new connections.
            self.break_all(node);
        }
        self.fail(verdict);
    }

    pub(super) fn record_synced(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        if n.paused {
            n.synced_meanwhile = true;
            return;
        }
        let Some(record) = n.syncing.take() else {
            return;
        };
        let seed = n.dice.roll();
        if let Err(error) = n.votes.write(&record, seed) {
            // Whatever was written may be there or not. The shells stop: replica and witness alike.
            self.note(node, &format!("stops: {error}"));
            self.seen.note("a sync failed");
            self.nodes[node].syncing = Some(record);
            self.end(node, End::WriteFailed);
            return;
        }
        self.write_disk(node, record);
        let releases = std::mem::take(&mut self.nodes[node].held);
        self.release(node, releases);
        self.work(node);
    }

    fn release(&mut self, node: usize, releases: Vec<Release>) {
        let synced = self.plan.rules.keep(Rule::SyncBeforeReply);
        let mut show = None;
        for release in releases {
            show = release.view.or(show);
            let sender = release.sender;
            let life_at = |world: &World, connection: usize| {
                world.connections.get(connection).map(|c| c.lives[1 - c.end(node)])
            };
            if let Some((connection, reply)) = release.answer {
                let to = life_at(self, connection);
                if synced {
                    let verdict = Oracle::said(&self.nodes[node].disk, &sender, to, None, Some(&reply));
                    self.fail(verdict);
                }
                self.say(connection, node, Packet::Answer { sender, reply });
            }
            if let Some((connection, hello)) = release.hello {
                self.say(connection, node, Packet::Ask { sender, request: Request::Hello(hello) });
            }
            for ask in release.asks {
                let connection = usize::try_from(ask.link.0).expect("links are connections");
                if synced {
                    let to = life_at(self, connection);
                    let verdict = Oracle::said(&self.nodes[node].disk, &sender, to, Some(&ask.request), None);
                    self.fail(verdict);
                }
                self.say(connection, node, Packet::Ask { sender, request: ask.request });
            }
            if let Some((command, taken)) = release.command {
                self.answer_command(node, &command, taken);
            }
        }
        if let Some(view) = show {
            if synced {
                let verdict = Oracle::showed(NAMES[node], self.nodes[node].replica_record(), &view);
                self.fail(verdict);
            }
            self.show(node, view);
        }
        self.drop_replaced_link(node);
    }

    /// Closes the link to the peer that a newer one has replaced.
    fn drop_replaced_link(&mut self, node: usize) {
        let live = self.nodes[node].live_link(Part::Replica);
        let before = std::mem::replace(&mut self.nodes[node].link, live);
        if let (Some(old), Some(new), true) = (before, live, self.plan.both_dial)
            && old != new
            && !self.connections[old].broken
        {
            self.break_connection(old);
        }
    }

    fn say(&mut self, connection: usize, from: usize, packet: Packet) {
        if let Some(c) = self.connections.get(connection) {
            let to = c.other(from);
            let lost = self.edges[from][to].cut || c.broken || !self.nodes[to].up;
            if let Some(transcript) = &mut self.transcript {
                transcript.said(self.now, from, to, &packet, lost);
            }
            seen::packet(&mut self.seen, &packet);
            self.send(connection, from, packet);
        }
    }

    fn answer_command(&mut self, node: usize, command: &Input, taken: Result<(), Refusal>) {
        seen::command(&mut self.seen, command, taken);
        if let Some(transcript) = &mut self.transcript {
            transcript.commanded(self.now, node, command, taken);
        }
        let now = self.nodes[node].clock(self.now);
        let n = &mut self.nodes[node];
        if let Some(input) = n.data.taken(command, taken.is_ok(), now) {
            // Data was destroyed.
            n.data_run += 1;
            n.queue.push_back(Work::Input(input));
            let (keeps, other) = (&self.nodes[node].data, &self.nodes[1 - node].data);
            let verdict =
                self.oracle.truncated(NAMES[node], &keeps.log[..keeps.durable], &other.log[..other.durable]);
            self.fail(verdict);
        }
    }

    fn show(&mut self, node: usize, view: View) {
        if let Some(transcript) = &mut self.transcript {
            transcript.showed(self.now, node, &view);
        }
        seen::role(&mut self.seen, self.nodes[node].shown.as_ref(), &view);
        self.nodes[node].shown = Some(view);
        self.drain(node);
    }

    /// Lets the data layer do everything that it has to do now.
    pub(super) fn drain(&mut self, node: usize) {
        for _ in 0..100 {
            let now = self.nodes[node].clock(self.now);
            let n = &mut self.nodes[node];
            let (true, false, Some(view)) = (n.up, n.paused, n.shown) else {
                return;
            };
            let acts = n.data.poll(&view, now);
            if acts.is_empty() {
                return;
            }
            for act in acts {
                self.act(node, act);
            }
        }
        self.fail(Err(format!("the data layer of {} never comes to rest", NAMES[node])));
    }

    fn act(&mut self, node: usize, act: Act) {
        match act {
            Act::Say { link, term, body } => {
                let connection = usize::try_from(link.0).expect("links are connections");
                let c = &mut self.connections[connection];
                let end = c.end(node);
                let number = c.sent[end];
                c.sent[end] += 1;
                self.say(connection, node, Packet::Data { number, term, body });
            }
            Act::Command(input) => {
                let n = &mut self.nodes[node];
                let lag = n.dice.between(0, self.plan.command_lag);
                if lag == 0 {
                    // Whoever called this works the queue off, or the next beat does.
                    n.queue.push_back(Work::Input(*input));
                } else {
                    let run = n.run;
                    let command = self.commands.len();
                    self.commands.push(Some(*input));
                    self.at(lag, Event::Command { node, run, command });
                }
            }
            Act::Sync(upto) => {
                let n = &self.nodes[node];
                let (run, data_run) = (n.run, n.data_run);
                let (low, high) = n.data.pace.map_or(self.plan.data_sync, |(_, nanos)| (nanos, nanos));
                let delay = self.nodes[node].dice.between(low, high);
                self.at(delay, Event::DataSynced { node, run, data_run, upto });
            }
            Act::Acknowledge { term, upto } => {
                let mut oracle = std::mem::take(&mut self.oracle);
                let others: Vec<Shown<'_>> = self.shown(1 - node).into_iter().collect();
                let log = &self.nodes[node].data.log[..upto];
                let verdict = oracle.acknowledge(NAMES[node], term, log, &others);
                oracle.acknowledges(node, self.now);
                drop(others);
                self.oracle = oracle;
                self.fail(verdict);
            }
        }
    }

    pub(super) fn schedule_wake(&mut self, node: usize) {
        let n = &self.nodes[node];
        let (true, Some(replica)) = (n.may_run(), n.replica()) else {
            return;
        };
        let local = n.clock(self.now);
        let wake = replica.wake_at(local);
        if wake == Moment::FOREVER {
            return;
        }
        let at = n.clock.when(wake).max(self.now + MS / 100);
        if at != n.wake {
            let run = n.run;
            self.nodes[node].wake = at;
            let delay = at - self.now;
            self.at(delay, Event::Wake { node, run, at });
        }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        if let Some(transcript) = &mut self.transcript {
            transcript.heading(text);
        }
    }

    pub(super) fn note(&mut self, node: usize, what: &str) {
        self.mark(&(node, what));
        if let Some(transcript) = &mut self.transcript {
            transcript.note(self.now, node, what);
        }
    }
}

fn is_command(input: &Input) -> bool {
    matches!(
        input,
        Input::Offer(_) | Input::Join(_) | Input::Resync | Input::Stalled | Input::Resign | Input::Stopped
    )
}
