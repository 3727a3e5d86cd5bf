//! The safety rules by name, and the switch that lets a test break one of them.
//!
//! A rule that no test misses is not a rule. In the shipped program every rule is kept and [`Rules::keep`] is a
//! constant; with the feature `testing` one rule can be broken, and the checkers must then find a violation.

/// A rule of the protocol whose removal loses a write, elects two leaders or lets two act.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// The witness gives a term to one candidate only. (§4)
    OnePromisePerTerm,
    /// The witness refuses whoever does not hold more than the confirmed term. (§4)
    HoldsAboveConfirmed,
    /// Holding exactly the confirmed term is not enough. (§4)
    HoldsStrictlyAbove,
    /// A later promise leaves the confirmation alone. (§4)
    ConfirmationOutlivesPromises,
    /// A confirmation is not given below a promise to somebody else. (§4)
    ConfirmNotBelowPromise,
    /// A replica refuses a candidate that is behind it. (§4)
    PeerNotBehind,
    /// While its promise runs a follower neither stands nor votes. (§6)
    PromiseBindsFollower,
    /// What forbids granting forbids standing. (§4)
    StandingIsGranting,
    /// `holds` rises by joining or settling, never by voting or leading. (§2)
    HoldsByJoiningOnly,
    /// A confirmed term is never paired again. (§5)
    ConfirmedNeverPaired,
    /// Opening gives up `sole` and takes a new term in one record, before any offer. (§5)
    OpeningIsAtomic,
    /// A sole replica votes for nobody. (§5)
    SoleRefusesVotes,
    /// A sole replica resumes in a new term. (§5)
    ResumeInNewTerm,
    /// `sole` is set after the confirmation, not before. (§5)
    SoleAfterConfirmation,
    /// A destructive resync gives up `holds` first. (§5)
    ResyncClearsHolds,
    /// Data is destroyed only on the live link of a leader of a term not below one's own. (§5)
    ResyncOnLiveLinkOnly,
    /// What comes from an earlier link is void. (§5)
    EarlierLinksAreVoid,
    /// Words of another witness's incarnation do not count. (§7)
    OneWitnessIncarnation,
    /// A blank replica is taken in only by a leader that was sole when it opened the term. (§7)
    BlankJoinsSoleOnly,
    /// A blank voter grants nothing. (§7)
    BlankGrantsNothing,
    /// A paired leader takes a witness in only after its peer has adopted it. (§7)
    #[cfg(feature = "testing")]
    PeerAdoptsFirst,
    /// An adoption never goes back to an earlier witness. (§7)
    AdoptionNeverGoesBack,
    /// A witness is taken in once, while it is blank. (§7)
    AdmittedOnce,
    /// Both ends of a link keep a number that every link moves on. (§7)
    LinksRatchet,
    /// What a voter said of its starts and terms is remembered by the others. (§7)
    LivesAreRemembered,
    /// How far a replica's data reached in a term is remembered by its peer. (§7)
    PositionsAreRemembered,
    /// A life that was given up stops when it hears of it. (§7)
    BannedStops,
    /// With `strict_boot` a witness that has started grants nothing before a leader validates it. (§7)
    ValidatedFirst,
    /// A paired leader validates only what its peer has vouched for. (§7)
    VouchedByPeer,
    /// A validation raises the confirmation to just below the leader's term. (§7)
    ValidationRaisesConfirmed,
    /// While a lease that the witness promised runs, it votes for nobody else. (§9)
    WitnessLeaseBinds,
    /// A witness that restarts, or was taken in, waits for the longest lease that may have been promised. (§9)
    WitnessHoldsOff,
    /// The leader's lease counts from when it sent the renewal. (§6)
    LeaseFromSending,
    /// A replica that restarts waits before it stands or votes. (§6)
    HoldOffAfterRestart,
    /// A leader that acts votes for nobody. (§6)
    ActingLeaderRefusesVotes,
    /// Nothing is said before it is durable. (§3)
    #[cfg(feature = "testing")]
    SyncBeforeReply,
    /// A candidate asks first whether it could win. (§4, progress)
    PreVoteFirst,
}

impl Rule {
    /// All of them.
    #[cfg(feature = "testing")]
    pub const ALL: [Rule; 37] = [
        Rule::OnePromisePerTerm,
        Rule::HoldsAboveConfirmed,
        Rule::HoldsStrictlyAbove,
        Rule::ConfirmationOutlivesPromises,
        Rule::ConfirmNotBelowPromise,
        Rule::PeerNotBehind,
        Rule::PromiseBindsFollower,
        Rule::StandingIsGranting,
        Rule::HoldsByJoiningOnly,
        Rule::ConfirmedNeverPaired,
        Rule::OpeningIsAtomic,
        Rule::SoleRefusesVotes,
        Rule::ResumeInNewTerm,
        Rule::SoleAfterConfirmation,
        Rule::ResyncClearsHolds,
        Rule::ResyncOnLiveLinkOnly,
        Rule::EarlierLinksAreVoid,
        Rule::OneWitnessIncarnation,
        Rule::BlankJoinsSoleOnly,
        Rule::BlankGrantsNothing,
        Rule::PeerAdoptsFirst,
        Rule::AdoptionNeverGoesBack,
        Rule::AdmittedOnce,
        Rule::LinksRatchet,
        Rule::LivesAreRemembered,
        Rule::PositionsAreRemembered,
        Rule::BannedStops,
        Rule::ValidatedFirst,
        Rule::VouchedByPeer,
        Rule::ValidationRaisesConfirmed,
        Rule::WitnessLeaseBinds,
        Rule::WitnessHoldsOff,
        Rule::LeaseFromSending,
        Rule::HoldOffAfterRestart,
        Rule::ActingLeaderRefusesVotes,
        Rule::SyncBeforeReply,
        Rule::PreVoteFirst,
    ];
}

/// Which rules are kept: all, except in tests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rules {
    #[cfg(feature = "testing")]
    broken: Option<Rule>,
}

impl Rules {
    /// All of them.
    #[cfg(not(feature = "testing"))]
    pub const KEPT: Rules = Rules {};
    /// All of them.
    #[cfg(feature = "testing")]
    pub const KEPT: Rules = Rules { broken: None };

    /// All but one.
    #[cfg(feature = "testing")]
    pub const fn without(rule: Rule) -> Rules {
        Rules { broken: Some(rule) }
    }

    /// Whether the rule is kept.
    #[cfg(not(feature = "testing"))]
    #[inline]
    pub(crate) fn keep(self, _rule: Rule) -> bool {
        true
    }

    /// Whether the rule is kept.
    #[cfg(feature = "testing")]
    pub fn keep(self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }
}
