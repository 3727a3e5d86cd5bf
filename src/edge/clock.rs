//! The only reader of time and of entropy.

#![allow(clippy::disallowed_methods, reason = "everybody else reads clock and entropy through this file")]

use std::io;

use rustix::rand::GetRandomFlags;

/// 128 random bits; never 0, which stands for "none yet" where such numbers are kept.
pub fn random_u128() -> u128 {
    loop {
        let drawn = u128::from_ne_bytes(random_bytes());
        if drawn != 0 {
            return drawn;
        }
    }
}

/// Waits for the kernel's pool after an early boot: identities must not be drawn from an empty one.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("every supported kernel has getrandom(2), this one says: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random_u128(), random_u128());
    }
}
