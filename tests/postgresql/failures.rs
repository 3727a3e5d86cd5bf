//! One thing fails, under load.

use rustix::process::Signal;

use crate::hosts::{A, B, Cut, W};
use crate::load::Load;
use crate::pair::{Pair, can_run};

/// Shows: a primary whose host loses its power is replaced; when it is back it follows, without what it had more.
#[test]
fn the_primarys_host_dies() {
    if !can_run() {
        return;
    }
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "primary's host dies");
    load.fault("power off at a");
    pair.power_off(A);
    pair.until_primary(B);
    load.goes_on(&pair);
    load.fault("a comes back");
    pair.power_on(A);
    pair.until_pair(B);
    load.goes_on(&pair);
    load.check(&pair);
}
