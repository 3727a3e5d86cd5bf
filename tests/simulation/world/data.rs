//! A small replicated log, as somebody who embeds the library would write it: it knows the replica only by its
//! [`View`] and its commands.
//!
//! What such a data layer has to do:
//! - begin each term that it leads with a mark;
//! - acknowledge by the [`Right`], and nothing alone from the moment that it asks to open a term;
//! - stamp its messages with link and term, and drop what does not fit the present view;
//! - as a follower, hold exactly what the leader holds (nothing more) and have it durable before it joins;
//! - destroy nothing before a resync was granted;
//! - tell the voter how far the data is durable before it tells the peer.

use tiebreak::ids::{LinkId, Position, Term, VoterId};
use tiebreak::testing::{Input, Right, RoleView, View};
use tiebreak::time::Moment;

use super::MS;

/// One write, or (value 0) the mark that begins a term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Entry {
    pub(crate) term: Term,
    pub(crate) value: u32,
}

/// What data layers say to one another. Link and term stand beside it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Body {
    /// Follower: "send me everything, from the start".
    Begin,
    /// Leader: entries from `start`; the first of a stream carries the whole log.
    Append { start: usize, entries: Vec<Entry>, first: bool },
    /// Follower: "so much of it is durable here".
    Has(usize),
}

/// What the data layer wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Say {
        link: LinkId,
        term: Term,
        body: Body,
    },
    Command(Box<Input>),
    /// Make everything up to there durable.
    Sync(usize),
    /// Clients are told that everything up to there is safe.
    Acknowledge {
        term: Term,
        upto: usize,
    },
}

/// The leader's stream to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stream {
    link: LinkId,
    term: Term,
    sent: usize,
    begun: bool,
    peer_has: usize,
    progress: Moment,
}

/// The follower's side of it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Copying {
    link: LinkId,
    leader: VoterId,
    term: Term,
    /// So much is known to be the leader's.
    verified: usize,
    begun: bool,
    /// When to ask for the stream again.
    ask_again: Moment,
    /// What came while a resync was being asked for.
    waiting: Option<(usize, Vec<Entry>)>,
    resync_asked: bool,
    told: Option<usize>,
    joining: Option<Position>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    pub(crate) log: Vec<Entry>,
    /// On the disk.
    pub(crate) durable: usize,
    /// On the disk, and the voter knows.
    known: usize,
    syncing: bool,
    /// The disk takes no more.
    pub(crate) stuck: bool,
    marked: Term,
    mark: usize,
    pub(crate) commit: usize,
    stream: Option<Stream>,
    /// Asked to open: nothing is acknowledged alone any more.
    pub(crate) frozen: bool,
    offering: bool,
    /// After a refusal, no command before this.
    again: Moment,
    stalled_told: bool,
    /// The peer made nothing durable beyond this on this link: until it does, it is not offered anything.
    stalled_at: Option<(LinkId, usize)>,
    stop_by: Option<Moment>,
    stop_told: bool,
    copying: Option<Copying>,
    /// Leave the pairing alone, for scenarios that need a leader that does not offer.
    pub(crate) shy: bool,
    /// A resync wipes everything and copies from the start, as a base backup does.
    pub(crate) wipes: bool,
    /// A leadership cluster protects no data: there is only a service to stop.
    pub(crate) none: bool,
    /// It makes so many entries durable at once, and takes so many nanoseconds for that, as a base copy would.
    pub(crate) pace: Option<(usize, u64)>,
    /// How much longer than usual it waits for its peer, in nanoseconds.
    pub(crate) slack: u64,
}

const STALLED_AFTER: u64 = 400 * MS;
const AGAIN: u64 = 50 * MS;
const ASK_AGAIN: u64 = 300 * MS;
const STOP_WITHIN: u64 = 500 * MS;

fn later(now: Moment, nanos: u64) -> Moment {
    Moment(now.0 + nanos)
}

impl Data {
    /// What is there before anything was written.
    pub(crate) fn empty(slack: u64, none: bool) -> Data {
        Data { slack, none, ..Data::default() }
    }

    /// A new disk.
    pub(crate) fn lost(&self) -> Data {
        Data { log: Vec::new(), durable: 0, ..self.clone() }.after_crash()
    }

    /// What a crash leaves.
    pub(crate) fn after_crash(&self) -> Data {
        let log = self.log[..self.durable].to_vec();
        let durable = self.durable;
        let Data { shy, wipes, slack, pace, none, .. } = *self;
        Data { log, durable, known: durable, shy, wipes, slack, pace, none, ..Data::default() }
    }

    pub(crate) fn position(&self) -> Position {
        Position(self.known as u64)
    }

    /// The mark of the present term is acknowledged: what it reads is what was written.
    pub(crate) fn reads(&self, term: Term) -> bool {
        self.marked == term && self.commit >= self.mark
    }

    /// A client's write. Whether it was accepted; it is acknowledged later, or never.
    pub(crate) fn write(&mut self, view: &View, now: Moment, value: u32) -> bool {
        let RoleView::Leader { token, acts_until, resigning, .. } = view.role else {
            return false;
        };
        let acts = acts_until.is_some_and(|until| now < until);
        if !acts || resigning || self.none || self.marked != token.term() {
            return false;
        }
        self.log.push(Entry { term: token.term(), value });
        true
    }

    pub(crate) fn synced(&mut self, upto: usize) -> Input {
        self.syncing = false;
        self.durable = self.durable.max(upto.min(self.log.len()));
        Input::Durable(Position(self.durable as u64))
    }

    /// The voter has handled a `Durable`.
    pub(crate) fn told_durable(&mut self, position: Position) {
        self.known = usize::try_from(position.0).expect("positions are log lengths").min(self.durable);
    }

    /// A command of this data layer was taken or refused. What has to be told to the voter next.
    pub(crate) fn taken(&mut self, command: &Input, ok: bool, now: Moment) -> Option<Input> {
        match command {
            Input::Offer(_) => {
                self.offering = false;
                if !ok {
                    self.frozen = false;
                    self.again = later(now, AGAIN);
                }
            }
            Input::Join(_) => {
                if let Some(copying) = &mut self.copying
                    && !ok
                {
                    copying.joining = None;
                    self.again = later(now, AGAIN);
                }
            }
            Input::Resync => {
                if !ok {
                    self.again = later(now, AGAIN);
                }
                let copying = self.copying.as_mut()?;
                copying.resync_asked = false;
                if ok && let Some((start, entries)) = copying.waiting.take() {
                    let mut same = self.log[start..].iter().zip(&entries).take_while(|(a, b)| a == b).count();
                    let mut keep = start + same;
                    let mut entries = entries;
                    if self.wipes {
                        entries.splice(0..0, self.log[..start].iter().copied());
                        (same, keep) = (0, 0);
                    }
                    self.log.truncate(keep);
                    self.durable = self.durable.min(keep);
                    self.known = self.known.min(keep);
                    self.syncing = false;
                    self.log.extend(&entries[same..]);
                    copying.verified = self.log.len();
                    return Some(Input::Durable(Position(self.durable as u64)));
                }
            }
            _ => {}
        }
        None
    }

    pub(crate) fn hear(&mut self, link: LinkId, term: Term, body: &Body, now: Moment, view: &View) {
        match body {
            Body::Begin => {
                let leads = view.authority().is_some_and(|(token, ..)| token.term() == term);
                if leads && view.peer.is_some_and(|peer| peer.id == link) {
                    self.stream =
                        Some(Stream { link, term, sent: 0, begun: false, peer_has: 0, progress: now });
                }
            }
            Body::Has(upto) => {
                if let Some(stream) = &mut self.stream
                    && (stream.link, stream.term) == (link, term)
                    && *upto > stream.peer_has
                {
                    stream.peer_has = *upto;
                    stream.progress = now;
                }
            }
            Body::Append { start, entries, first } => self.append(link, term, *start, entries, *first),
        }
    }

    fn append(&mut self, link: LinkId, term: Term, start: usize, entries: &[Entry], first: bool) {
        let Some(copying) = &mut self.copying else {
            return;
        };
        if (copying.link, copying.term) != (link, term) {
            return;
        }
        if first {
            copying.waiting = None;
        }
        if let Some((_, waiting)) = &mut copying.waiting {
            waiting.extend(entries);
            return;
        }
        if first {
            copying.begun = true;
            let same = self.log.iter().zip(entries).take_while(|(a, b)| a == b).count();
            if same < self.log.len() {
                // Something here is not the leader's: it has to go before anything else.
                copying.verified = same;
                copying.waiting = Some((same, entries[same..].to_vec()));
                return;
            }
            self.log.extend(&entries[same..]);
            copying.verified = self.log.len();
        } else if copying.begun && start == copying.verified && start == self.log.len() {
            self.log.extend(entries);
            copying.verified = self.log.len();
        }
    }

    /// What is to be done now. The drain rule: call again until it is empty.
    pub(crate) fn poll(&mut self, view: &View, now: Moment) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.none {
            match view.role {
                RoleView::Leader { resigning: true, .. } => self.hand_over(now, 0, &mut acts),
                _ => self.leads_no_more(),
            }
            return acts;
        }
        match view.role {
            RoleView::Leader { .. } => {
                self.copying = None;
                self.lead(view, now, &mut acts);
            }
            RoleView::Follower { .. } => {
                self.leads_no_more();
                self.follow(view, now, &mut acts);
            }
            RoleView::Candidate => {
                self.leads_no_more();
                self.copying = None;
            }
        }
        if !self.stuck && !self.syncing && self.durable < self.log.len() {
            self.syncing = true;
            let most = self.pace.map_or(self.log.len(), |(entries, _)| self.durable + entries);
            acts.push(Act::Sync(most.min(self.log.len())));
        }
        acts
    }

    fn leads_no_more(&mut self) {
        self.stream = None;
        self.frozen = false;
        self.stop_by = None;
        self.stop_told = false;
        self.commit = 0;
    }

    fn lead(&mut self, view: &View, now: Moment, acts: &mut Vec<Act>) {
        let RoleView::Leader { token, right, may_offer, offered, resigning, .. } = view.role else {
            return;
        };
        let term = token.term();
        if self.marked != term {
            self.log.push(Entry { term, value: 0 });
            self.marked = term;
            self.mark = self.log.len();
            // An offer that is still on its way to the voter may open yet another term.
            self.frozen = self.offering;
            self.stalled_told = false;
            self.stop_by = None;
            self.stop_told = false;
        }
        let peer = view.peer.map(|peer| peer.id);
        self.stream = self.stream.filter(|stream| Some(stream.link) == peer && stream.term == term);
        if let Some(stream) = &mut self.stream {
            if !stream.begun || stream.sent < self.log.len() {
                let (start, first) = (stream.sent, !stream.begun);
                let body = Body::Append { start, entries: self.log[start..].to_vec(), first };
                acts.push(Act::Say { link: stream.link, term, body });
                stream.begun = true;
                stream.sent = self.log.len();
            }
            if stream.peer_has >= self.log.len() {
                stream.progress = now;
            }
        }
        let peer_has = self.stream.map_or(0, |stream| stream.peer_has);
        let safe = match right {
            Right::Blocked => 0,
            Right::Paired => self.known.min(peer_has),
            Right::Solo if self.frozen => 0,
            Right::Solo => self.known,
        };
        if safe > self.commit {
            self.commit = safe;
            acts.push(Act::Acknowledge { term, upto: safe });
        }
        if resigning {
            self.hand_over(now, peer_has, acts);
            return;
        }
        // A hand-over that came to nothing is over.
        (self.stop_by, self.stop_told) = (None, false);
        let ready = match right {
            Right::Blocked => self.known >= self.mark,
            Right::Solo => {
                let moves =
                    |s: Stream| self.stalled_at.is_none_or(|(link, at)| link != s.link || peer_has > at);
                self.stream.is_some_and(|s| s.begun && moves(s)) && peer_has + 2 >= self.log.len()
            }
            Right::Paired => false,
        };
        let free = may_offer && !self.offering && offered.is_none() && !self.shy;
        if ready && free && now >= self.again {
            self.offering = true;
            self.frozen = right == Right::Solo;
            acts.push(Act::Command(Box::new(Input::Offer(self.position()))));
        }
        if right == Right::Paired
            && !self.stalled_told
            && self.stream.is_some_and(|stream| now > later(stream.progress, STALLED_AFTER + self.slack))
        {
            self.stalled_told = true;
            self.stalled_at = self.stream.map(|stream| (stream.link, peer_has));
            acts.push(Act::Command(Box::new(Input::Stalled)));
        }
    }

    fn hand_over(&mut self, now: Moment, peer_has: usize, acts: &mut Vec<Act>) {
        let by = *self.stop_by.get_or_insert(later(now, STOP_WITHIN + self.slack));
        let all_there = self.known == self.log.len() && peer_has == self.log.len();
        if !self.stop_told && (all_there || now >= by) {
            self.stop_told = true;
            acts.push(Act::Command(Box::new(Input::Stopped)));
        }
    }

    fn follow(&mut self, view: &View, now: Moment, acts: &mut Vec<Act>) {
        let RoleView::Follower { leader, offer, .. } = view.role else {
            return;
        };
        let heard = view.peer.zip(leader).filter(|(peer, (leader, _))| peer.who == *leader);
        let Some((peer, (leader, term))) = heard else {
            self.copying = None;
            return;
        };
        let same = |c: &Copying| (c.link, c.leader, c.term) == (peer.id, leader, term);
        if !self.copying.as_ref().is_some_and(same) {
            self.copying = Some(Copying {
                link: peer.id,
                leader,
                term,
                verified: 0,
                begun: false,
                ask_again: now,
                waiting: None,
                resync_asked: false,
                told: None,
                joining: None,
            });
        }
        let Some(copying) = &mut self.copying else {
            return;
        };
        if copying.waiting.is_some() {
            if !copying.resync_asked && now >= self.again {
                copying.resync_asked = true;
                acts.push(Act::Command(Box::new(Input::Resync)));
            }
            return;
        }
        if !copying.begun {
            if now >= copying.ask_again {
                copying.ask_again = later(now, ASK_AGAIN + self.slack);
                acts.push(Act::Say { link: copying.link, term, body: Body::Begin });
            }
            return;
        }
        let has = self.known.min(copying.verified);
        if copying.told.is_none_or(|told| has > told) {
            copying.told = Some(has);
            acts.push(Act::Say { link: copying.link, term, body: Body::Has(has) });
        }
        match offer.filter(|o| o.link == copying.link && o.term == term) {
            Some(offer) => {
                let there = has as u64 >= offer.position.0 && copying.verified == self.log.len();
                if there && copying.joining != Some(offer.position) && now >= self.again {
                    copying.joining = Some(offer.position);
                    acts.push(Act::Command(Box::new(Input::Join(term))));
                }
            }
            None => copying.joining = None,
        }
    }
}
