//! The rules of named leases by name, and the switch that lets a test break one of them: see `src/rules.rs`.

/// A rule whose removal lets two hold one name, or a token fall.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NameRule {
    /// A name that is held is given to nobody else.
    OneHolder,
    /// Each grant of a term has a number of its own.
    GrantsAreCounted,
    /// A new tenure waits until every lease of earlier ones has ended.
    HoldOff,
    /// Nothing is granted when the right to act has ended.
    GrantsInTenureOnly,
    /// A right to act that was had again after a break is a new tenure.
    BreakEndsTenure,
    /// The holder counts from when it sent the request.
    HeldFromSending,
    /// The holder counts shorter by the clock's rate error, the table longer.
    RateErrorCounts,
    /// What was taken back is kept until its holder has let go.
    RevokedIsKept,
    /// Only the token that holds a name renews or releases it.
    TokenMatches,
}

impl NameRule {
    /// All of them.
    #[cfg(feature = "testing")]
    pub const ALL: [NameRule; 9] = [
        NameRule::OneHolder,
        NameRule::GrantsAreCounted,
        NameRule::HoldOff,
        NameRule::GrantsInTenureOnly,
        NameRule::BreakEndsTenure,
        NameRule::HeldFromSending,
        NameRule::RateErrorCounts,
        NameRule::RevokedIsKept,
        NameRule::TokenMatches,
    ];
}

/// Which rules are kept: all, except in tests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NameRules {
    #[cfg(feature = "testing")]
    broken: Option<NameRule>,
}

impl NameRules {
    /// All of them.
    #[cfg(not(feature = "testing"))]
    pub const KEPT: NameRules = NameRules {};
    /// All of them.
    #[cfg(feature = "testing")]
    pub const KEPT: NameRules = NameRules { broken: None };

    /// All but one.
    #[cfg(feature = "testing")]
    pub const fn without(rule: NameRule) -> NameRules {
        NameRules { broken: Some(rule) }
    }

    /// Whether the rule is kept.
    #[cfg(not(feature = "testing"))]
    #[inline]
    pub(super) fn keep(self, _rule: NameRule) -> bool {
        true
    }

    /// Whether the rule is kept.
    #[cfg(feature = "testing")]
    pub(super) fn keep(self, rule: NameRule) -> bool {
        self.broken != Some(rule)
    }
}
