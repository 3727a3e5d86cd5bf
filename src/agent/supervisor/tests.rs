//! The rules of the supervisor, in virtual time.

use super::*;
use crate::ids::Term;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);
const EVERY: [Hook; 8] = Hook::ALL;
const NECESSARY: [Hook; 2] = [Hook::Promote, Hook::Demote];

/// A supervisor with a clock that only the test moves, and what it wants done that was not looked at yet.
struct Rig {
    supervisor: Supervisor,
    now: Moment,
    actions: Vec<Action>,
}

fn plan(hooks: &[Hook]) -> Plan {
    Plan {
        times: Times::of(LEASE, Some(LEASE / 2)),
        hooks: hooks.to_vec(),
        killing_is_enough: false,
        no_failover: false,
    }
}

impl Rig {
    fn new(plan: Plan) -> Rig {
        let mut rig =
            Rig { supervisor: Supervisor::new(plan, false, false), now: Moment(1), actions: Vec::new() };
        rig.input(Input::Votes(Votes::default()));
        rig
    }

    /// One that has had its first demote.
    fn at_rest(hooks: &[Hook]) -> Rig {
        let mut rig = Rig::new(plan(hooks));
        rig.ran(Hook::Demote);
        rig.done(Hook::Demote, 0);
        rig
    }

    /// One that acts under a lease that has just been renewed.
    fn leading(hooks: &[Hook], right: Right) -> Rig {
        let mut rig = Rig::at_rest(hooks);
        rig.leads(right, LEASE);
        if hooks.contains(&Hook::Fence) {
            rig.ran(Hook::Fence);
            rig.done(Hook::Fence, 0);
        }
        rig.ran(Hook::Promote);
        rig.done(Hook::Promote, 0);
        rig
    }

    fn input(&mut self, input: Input) {
        let actions = self.supervisor.handle(self.now, input);
        self.actions.extend(actions);
    }

    /// Lets time pass, and wakes the supervisor whenever it wants to be woken.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let wake = self.supervisor.wake_at(self.now);
            if wake > end {
                break;
            }
            self.now = self.now.max(wake);
            let votes = self.supervisor.votes.clone();
            self.input(Input::Votes(votes));
        }
        self.now = end;
    }

    fn votes(&mut self, leads: Option<Leads>, follows: Option<&str>) {
        let follows = follows.map(|name| name.parse().expect("a name"));
        self.input(Input::Votes(Votes { leads, follows, offer: None }));
    }

    fn leads(&mut self, right: Right, left: Duration) {
        let until = if right == Right::Solo { Moment::FOREVER } else { self.now + left };
        self.votes(Some(leads(right, Some(until))), None);
    }

    fn done(&mut self, hook: Hook, code: i32) {
        self.input(Input::Done(hook, Outcome::Code(code)));
    }

    /// The next action has to be a run of this hook.
    #[track_caller]
    fn ran(&mut self, hook: Hook) -> Run {
        let action = self.next();
        match action {
            Action::Run(run) if run.hook == hook => run,
            other => panic!("{hook} was to run, and not {other:?}"),
        }
    }

    #[track_caller]
    fn next(&mut self) -> Action {
        assert!(!self.actions.is_empty(), "nothing is to be done");
        self.actions.remove(0)
    }

    fn taken(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    #[track_caller]
    fn nothing(&self) {
        assert_eq!(self.actions, [], "nothing was to be done");
    }
}

fn leads(right: Right, until: Option<Moment>) -> Leads {
    Leads { token: Token::of(Term(7)), until, right, may_offer: false, peer: true }
}

#[test]
fn nothing_acts_without_a_lease_so_the_first_thing_is_a_demote_and_it_is_repeated_until_it_works() {
    let mut rig = Rig::new(plan(&NECESSARY));
    assert_eq!(rig.ran(Hook::Demote).reason, Reason::Start);
    rig.leads(Right::Paired, LEASE);
    rig.nothing();
    rig.done(Hook::Demote, 1);
    assert_eq!(rig.next(), Action::KillService);
    rig.input(Input::Emptied);
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    assert_eq!(rig.ran(Hook::Promote).mode, Mode::Both);
}

#[test]
fn the_stop_begins_early_enough_for_demote_and_kill_and_ends_with_the_watchdog() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    let times = plan(&[]).times;
    let end = rig.now + LEASE;
    rig.pass(LEASE - times.stop_before() - Duration::from_millis(1));
    rig.nothing();
    assert!(rig.supervisor.may_feed(rig.now, times.stop_before()));
    rig.pass(Duration::from_millis(1));
    let run = rig.ran(Hook::Demote);
    assert_eq!((run.reason, end.since(rig.now)), (Reason::LeaseEnds, times.stop_before()));
    rig.pass(times.demote);
    assert_eq!(rig.next(), Action::KillService);
    assert_eq!(end.since(rig.now), times.kill + times.margin());
    rig.pass(times.kill);
    assert_eq!(rig.next(), Action::Escalate);
    assert!(!rig.supervisor.may_feed(rig.now, Duration::ZERO));
    // Killed at last: what the hooks did outside of processes is still to be undone.
    rig.done(Hook::Demote, 0);
    rig.input(Input::Emptied);
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    assert!(rig.supervisor.may_feed(rig.now, LEASE), "it does not act any more");
}

#[test]
fn a_renewal_that_comes_while_it_stops_does_not_cut_the_demote_short() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    rig.pass(LEASE - plan(&[]).times.stop_before());
    rig.ran(Hook::Demote);
    rig.leads(Right::Paired, LEASE);
    rig.nothing();
    rig.done(Hook::Demote, 0);
    rig.ran(Hook::Promote);
}

#[test]
fn a_lease_that_is_lost_in_the_middle_kills_the_promotion_and_demotes() {
    let mut rig = Rig::at_rest(&NECESSARY);
    rig.leads(Right::Paired, LEASE);
    rig.ran(Hook::Promote);
    rig.votes(None, Some("b"));
    assert_eq!(rig.next(), Action::KillHook);
    rig.input(Input::Done(Hook::Promote, Outcome::Signal(9)));
    assert_eq!(rig.ran(Hook::Demote).reason, Reason::NotLeading);
    rig.done(Hook::Demote, 0);
    assert_eq!(rig.supervisor.service(), Service::Follows("b".parse().expect("a name")));
}

#[test]
fn a_promotion_that_fails_keeps_the_lease_then_hands_over_and_backs_off_ever_longer() {
    let mut rig = Rig::at_rest(&NECESSARY);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        rig.leads(Right::Paired, LEASE);
        rig.pass(Duration::ZERO);
        rig.ran(Hook::Promote);
        rig.done(Hook::Promote, 1);
        assert_eq!(rig.ran(Hook::Demote).reason, Reason::PromoteFailed);
        rig.nothing();
        rig.done(Hook::Demote, 0);
        assert_eq!(rig.next(), Action::Call(Call::Release));
        rig.votes(None, Some("b"));
        rig.input(Input::Called(Call::Release, Ok(())));
        // The other one fails as well and hands over again: this one does not try at once.
        rig.leads(Right::Paired, Duration::from_secs(3600));
        rig.nothing();
        let from = rig.now;
        let wake = rig.supervisor.retry_at();
        pauses.push(wake.since(from));
        rig.pass(wake.since(from) - Duration::from_millis(1));
        rig.nothing();
        rig.now = wake;
    }
    assert_eq!(pauses, [2, 4, 8, 16].map(Duration::from_secs));
}

#[test]
fn a_promotion_that_hangs_is_killed_at_its_time_out() {
    let mut rig = Rig::at_rest(&NECESSARY);
    rig.leads(Right::Paired, Duration::from_secs(3600));
    rig.ran(Hook::Promote);
    rig.pass(plan(&[]).times.promote);
    assert_eq!(rig.next(), Action::KillHook);
    rig.input(Input::Done(Hook::Promote, Outcome::Signal(9)));
    assert_eq!(rig.ran(Hook::Demote).reason, Reason::PromoteFailed);
}

#[test]
fn the_lease_is_given_back_only_when_the_service_has_stopped() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    rig.input(Input::Shutdown);
    assert_eq!(rig.ran(Hook::Demote).reason, Reason::Shutdown);
    rig.pass(SECOND);
    rig.nothing();
    rig.done(Hook::Demote, 0);
    assert_eq!(rig.next(), Action::Call(Call::Release));
    rig.nothing();
    rig.input(Input::Called(Call::Release, Ok(())));
    assert_eq!(rig.next(), Action::Exit);
}

#[test]
fn a_slow_demote_of_a_switchover_has_its_time_while_the_lease_is_renewed() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    rig.input(Input::StepDown(Reason::Switchover("upgrade".into())));
    let run = rig.ran(Hook::Demote);
    assert_eq!(run.reason.to_string(), "switchover: upgrade");
    for _ in 0..2 {
        rig.pass(SECOND);
        rig.leads(Right::Paired, LEASE);
    }
    rig.nothing();
    rig.done(Hook::Demote, 0);
    assert_eq!(rig.next(), Action::Call(Call::Release));
    rig.votes(None, None);
    rig.input(Input::Called(Call::Release, Ok(())));
    assert_eq!(rig.next(), Action::SteppedDown(Ok(())));
}

#[test]
fn a_switchover_without_anybody_to_hand_over_to_says_so_and_the_service_comes_back() {
    let mut rig = Rig::leading(&NECESSARY, Right::Solo);
    rig.input(Input::StepDown(Reason::Resign(String::new())));
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    assert!(matches!(rig.next(), Action::SteppedDown(Err(why)) if why.contains("solo")));
    assert_eq!(rig.ran(Hook::Promote).mode, Mode::Alone);
}

#[test]
fn it_goes_alone_by_a_hook_and_back_by_another_before_the_term_is_opened() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    rig.ran(Hook::Check);
    rig.leads(Right::Solo, LEASE);
    assert_eq!(rig.next(), Action::KillHook, "the check gives way");
    rig.input(Input::Done(Hook::Check, Outcome::Signal(9)));
    rig.ran(Hook::Solo);
    rig.done(Hook::Solo, 0);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 1);
    rig.nothing();
    // The standby is there and has everything by the next check.
    let mut solo = leads(Right::Solo, Some(Moment::FOREVER));
    solo.may_offer = true;
    rig.votes(Some(solo), None);
    rig.nothing();
    rig.pass(SECOND * 2);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 0);
    rig.ran(Hook::Paired);
    rig.now = rig.now + SECOND;
    rig.done(Hook::Paired, 0);
    // Only what was checked after it acknowledged by both counts.
    rig.ran(Hook::Check);
    rig.nothing();
    rig.done(Hook::Check, 0);
    assert_eq!(rig.next(), Action::Call(Call::Offer));
}

#[test]
fn while_an_offer_is_out_nothing_is_acknowledged_alone_again() {
    let mut rig = Rig::leading(&EVERY, Right::Solo);
    rig.ran(Hook::Check);
    let mut solo = leads(Right::Solo, Some(Moment::FOREVER));
    solo.may_offer = true;
    rig.votes(Some(solo), None);
    rig.done(Hook::Check, 0);
    rig.ran(Hook::Paired);
    rig.now = rig.now + SECOND;
    rig.done(Hook::Paired, 0);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 0);
    assert_eq!(rig.next(), Action::Call(Call::Offer));
    // The peer is gone, and the voter, whose disk is slow, has not looked at the offer yet.
    (solo.may_offer, solo.peer) = (false, false);
    rig.votes(Some(solo), None);
    rig.nothing();
    rig.input(Input::Called(Call::Offer, Err("the link is over".into())));
    rig.ran(Hook::Solo);
}

#[test]
fn a_change_that_was_cut_short_counts_as_acknowledging_alone_until_it_is_made_again() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 0);
    let mut solo = leads(Right::Solo, Some(Moment::FOREVER));
    solo.peer = false;
    rig.votes(Some(solo), None);
    rig.ran(Hook::Solo);
    // The peer is back before it has ended; what it has done by then is not known.
    (solo.peer, solo.may_offer) = (true, true);
    rig.votes(Some(solo), None);
    assert_eq!(rig.next(), Action::KillHook);
    rig.nothing();
    rig.input(Input::Done(Hook::Solo, Outcome::Signal(9)));
    rig.ran(Hook::Paired);
    rig.nothing();
    rig.now = rig.now + SECOND;
    rig.done(Hook::Paired, 0);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 0);
    assert_eq!(rig.next(), Action::Call(Call::Offer));
}

#[test]
fn a_standby_joins_only_after_a_check_that_began_when_the_offer_was_there() {
    let mut rig = Rig::at_rest(&EVERY);
    rig.votes(None, Some("b"));
    rig.ran(Hook::Follow);
    rig.done(Hook::Follow, 0);
    rig.ran(Hook::Check);
    rig.now = rig.now + SECOND;
    let ticket = Ticket(3, 5);
    let follows = Some("b".parse().expect("a name"));
    rig.input(Input::Votes(Votes { leads: None, follows, offer: Some(ticket) }));
    rig.done(Hook::Check, 0);
    rig.ran(Hook::Check);
    rig.nothing();
    rig.done(Hook::Check, 0);
    assert_eq!(rig.next(), Action::Call(Call::Join(ticket)));
}

#[test]
fn follow_destroys_only_after_the_loss_is_on_record() {
    let mut rig = Rig::at_rest(&EVERY);
    rig.votes(None, Some("b"));
    assert!(!rig.ran(Hook::Follow).may_destroy);
    rig.done(Hook::Follow, 3);
    assert_eq!(rig.next(), Action::Call(Call::Resync));
    rig.nothing();
    rig.input(Input::Called(Call::Resync, Ok(())));
    assert!(rig.ran(Hook::Follow).may_destroy);
    rig.done(Hook::Follow, 3);
    rig.actions.clear();
    rig.input(Input::Called(Call::Resync, Err("sole".into())));
    rig.nothing();
}

#[test]
fn a_standby_that_stalls_is_told_to_the_voter_once() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 1);
    assert_eq!(rig.next(), Action::Call(Call::Stalled));
    rig.input(Input::Called(Call::Stalled, Ok(())));
    rig.pass(SECOND * 2);
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 1);
    rig.nothing();
}

#[test]
fn an_unhealthy_service_is_handed_over_after_as_many_checks_as_configured() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    for _ in 0..3 {
        rig.ran(Hook::Check);
        rig.leads(Right::Paired, LEASE);
        rig.done(Hook::Check, 2);
        rig.pass(SECOND * 2);
    }
    assert_eq!(rig.ran(Hook::Demote).reason, Reason::Unhealthy);
}

#[test]
fn while_paused_nothing_is_done_whatever_happens_to_the_votes() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    rig.actions.clear();
    rig.done(Hook::Check, 0);
    rig.input(Input::Pause(true));
    rig.votes(None, Some("b"));
    rig.pass(LEASE * 10);
    rig.nothing();
    assert!(rig.supervisor.may_feed(rig.now, LEASE));
    rig.input(Input::Pause(false));
    rig.ran(Hook::Demote);
}

#[test]
fn a_check_that_hangs_in_the_kernel_does_not_keep_the_service_alive_beyond_the_lease() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    rig.ran(Hook::Check);
    let times = plan(&[]).times;
    let end = rig.now + LEASE;
    rig.pass(LEASE - times.stop_before());
    // Its time-out, or to make way; SIGKILL does not end it.
    assert_eq!(rig.next(), Action::KillHook);
    rig.pass(end.since(rig.now) - times.kill - times.margin());
    assert_eq!(rig.next(), Action::KillService);
    assert!(end.since(rig.now) >= times.kill + times.margin());
    rig.pass(times.kill);
    assert_eq!(rig.next(), Action::Escalate);
    assert!(!rig.supervisor.may_feed(rig.now, Duration::ZERO));
    // It is gone at last: the service was killed, and does not count as acting.
    rig.input(Input::Done(Hook::Check, Outcome::Signal(9)));
    rig.input(Input::Emptied);
    rig.leads(Right::Paired, LEASE);
    rig.ran(Hook::Demote);
}

#[test]
fn a_paused_service_is_not_killed_for_a_check_that_hangs_in_the_kernel() {
    let mut rig = Rig::leading(&EVERY, Right::Paired);
    rig.ran(Hook::Check);
    rig.input(Input::Pause(true));
    rig.pass(plan(&[]).times.check);
    assert_eq!(rig.next(), Action::KillHook);
    rig.votes(None, Some("b"));
    rig.pass(LEASE * 10);
    rig.nothing();
    rig.input(Input::Pause(false));
    assert_eq!(rig.next(), Action::KillService);
}

#[test]
fn a_promotion_that_outlives_its_kill_is_killed_with_everything_else() {
    let mut rig = Rig::at_rest(&NECESSARY);
    rig.leads(Right::Paired, Duration::from_secs(3600));
    rig.ran(Hook::Promote);
    rig.pass(plan(&[]).times.promote);
    assert_eq!(rig.next(), Action::KillHook);
    rig.pass(plan(&[]).times.kill);
    assert_eq!(rig.next(), Action::KillService);
    rig.pass(plan(&[]).times.kill);
    assert_eq!(rig.next(), Action::Escalate);
}

#[test]
fn nothing_is_promoted_while_the_lease_is_being_given_back() {
    let mut rig = Rig::new(Plan { no_failover: true, ..plan(&NECESSARY) });
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    rig.leads(Right::Paired, LEASE);
    assert_eq!(rig.next(), Action::Call(Call::Release));
    rig.input(Input::Reload(plan(&NECESSARY)));
    rig.nothing();
    rig.input(Input::Called(Call::Release, Err("the link is over".into())));
    rig.ran(Hook::Promote);
}

#[test]
fn an_agent_that_ends_is_not_talked_into_staying() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    rig.input(Input::Shutdown);
    rig.input(Input::StepDown(Reason::Resign(String::new())));
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    assert_eq!(rig.next(), Action::Call(Call::Release));
    rig.input(Input::Called(Call::Release, Ok(())));
    assert_eq!(rig.next(), Action::Exit);
}

#[test]
fn a_demote_that_fails_at_once_is_not_repeated_as_fast_as_the_machine_can() {
    let mut rig = Rig::new(plan(&NECESSARY));
    for _ in 0..2 {
        rig.ran(Hook::Demote);
        rig.done(Hook::Demote, 1);
        assert_eq!(rig.next(), Action::KillService);
        rig.input(Input::Emptied);
    }
    rig.nothing();
    rig.pass(plan(&[]).times.margin());
    rig.ran(Hook::Demote);
}

#[test]
fn the_watchdog_is_fed_only_while_the_right_to_act_outlasts_it() {
    let mut rig = Rig::at_rest(&NECESSARY);
    assert!(rig.supervisor.may_feed(rig.now, SECOND), "it does not lead");
    rig.leads(Right::Paired, LEASE);
    rig.ran(Hook::Promote);
    assert!(rig.supervisor.may_feed(rig.now, LEASE));
    assert!(!rig.supervisor.may_feed(rig.now, LEASE + Duration::from_nanos(1)));
    rig.votes(None, None);
    assert!(!rig.supervisor.may_feed(rig.now, Duration::ZERO), "it may act without a right to");
    let mut sole = Rig::leading(&NECESSARY, Right::Solo);
    sole.pass(LEASE * 100);
    assert!(sole.supervisor.may_feed(sole.now, LEASE * 100));
    // An earlier life promoted and never demoted.
    let left_over = Supervisor::new(plan(&NECESSARY), true, false);
    assert!(!left_over.may_feed(Moment(1), Duration::ZERO));
}

#[test]
fn a_command_that_ends_is_a_failure_and_what_was_killed_needs_no_demote() {
    let mut rig = Rig::new(Plan { killing_is_enough: true, ..plan(&[]) });
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    rig.leads(Right::Paired, LEASE);
    rig.ran(Hook::Promote);
    rig.done(Hook::Promote, 0);
    rig.input(Input::Exited);
    assert_eq!(rig.ran(Hook::Demote).reason, Reason::Exited);
    rig.pass(plan(&[]).times.demote);
    assert_eq!(rig.next(), Action::KillService);
    rig.input(Input::Emptied);
    assert_eq!(rig.next(), Action::Call(Call::Release));
}

#[test]
fn the_other_node_is_fenced_off_before_each_promotion_in_a_new_term() {
    let mut rig = Rig::at_rest(&EVERY);
    rig.leads(Right::Paired, LEASE);
    rig.ran(Hook::Fence);
    rig.done(Hook::Fence, 1);
    assert_eq!(
        rig.next(),
        Action::Call(Call::Release),
        "nothing was promoted, so there is nothing to demote"
    );
}

#[test]
fn a_node_without_failover_never_promotes_and_hands_over() {
    let mut rig = Rig::new(Plan { no_failover: true, ..plan(&NECESSARY) });
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 0);
    rig.leads(Right::Blocked, LEASE);
    rig.nothing();
    rig.leads(Right::Paired, LEASE);
    assert_eq!(rig.next(), Action::Call(Call::Release));
}

#[test]
fn whoever_was_stopped_for_longer_than_its_lease_kills_at_once() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    rig.now = rig.now + LEASE * 2;
    rig.votes(None, Some("b"));
    rig.ran(Hook::Demote);
    rig.pass(Duration::ZERO);
    assert_eq!(rig.next(), Action::KillService);
    rig.input(Input::Done(Hook::Demote, Outcome::Signal(9)));
    rig.input(Input::Emptied);
    // What hooks did outside of processes is undone with time enough.
    let run = rig.ran(Hook::Demote);
    assert_eq!(run.deadline.since(rig.now), plan(&[]).times.demote);
}

#[test]
fn a_node_without_usable_data_stays_away_until_it_has_joined_a_leader() {
    let mut rig = Rig::new(plan(&EVERY));
    assert!(!rig.supervisor.may_stand(), "nobody knows yet");
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 66);
    assert!(!rig.supervisor.may_stand());
    // Should it be elected all the same, it gives leadership to whoever holds everything.
    rig.leads(Right::Paired, LEASE);
    assert_eq!(rig.taken(), [Action::Call(Call::Release)]);
    rig.input(Input::Called(Call::Release, Ok(())));
    rig.votes(None, None);
    rig.pass(LEASE);
    let peer = "b".parse().expect("a name");
    let offered = Votes { leads: None, follows: Some(peer), offer: Some(Ticket(8, 1)) };
    rig.input(Input::Votes(offered));
    rig.ran(Hook::Follow);
    rig.done(Hook::Follow, 0);
    assert!(!rig.supervisor.may_stand(), "it copies, and holds nothing whole yet");
    rig.ran(Hook::Check);
    rig.done(Hook::Check, 0);
    assert_eq!(rig.taken(), [Action::Call(Call::Join(Ticket(8, 1)))]);
    rig.input(Input::Called(Call::Join(Ticket(8, 1)), Ok(())));
    assert!(rig.supervisor.may_stand());
}

#[test]
fn a_demote_that_finds_no_data_is_no_failure_and_nothing_is_killed() {
    let mut rig = Rig::leading(&NECESSARY, Right::Paired);
    rig.votes(None, None);
    rig.ran(Hook::Demote);
    rig.done(Hook::Demote, 66);
    assert!(!rig.taken().contains(&Action::KillService));
    assert_eq!(rig.supervisor.service(), Service::Rests);
    assert!(!rig.supervisor.may_act() && !rig.supervisor.may_stand());
}

#[test]
fn a_fence_that_hangs_where_it_cannot_be_killed_hands_over() {
    let mut rig = Rig::at_rest(&EVERY);
    rig.leads(Right::Paired, LEASE * 100);
    rig.ran(Hook::Fence);
    rig.pass(plan(&[]).times.switch);
    assert_eq!(rig.next(), Action::KillHook);
    rig.pass(plan(&[]).times.kill);
    assert_eq!(rig.taken(), [Action::Call(Call::Release)], "nothing else can run here");
    assert!(!rig.supervisor.may_act());
}
