//! As what each key may speak.

use crate::ids::{ClusterName, NodeId};

/// As what a key may speak.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) cluster: ClusterName,
    pub(super) node: NodeId,
}
