//! Tokens that travel as text, in a header of a request say.

use crate::ids::Token;

/// The header's usual name.
pub const HEADER: &str = "Tiebreak-Token";

/// Why a text is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is none.
    #[error("the request bears no token: the writer has to send its lease's token in the header {HEADER}")]
    Missing,
    /// It is no decimal number of 64 bits.
    #[error(
        "{text:?} is no token, which is a whole number from 0 to {}, in decimal digits alone: send what \
         `Lease::token` or TIEBREAK_TOKEN says",
        u64::MAX
    )]
    NotANumber {
        /// What was there, cut to 40 characters.
        text: String,
    },
}

/// Reads the token out of the value of a header; `None` is a header that is not there. Digits only: no sign, no space
/// within, nothing behind. Servers pass the result to [`Gates::admit_and`](super::Gates::admit_and).
///
/// # Errors
/// [`TokenError`]. A write without a token, or with a broken one, must not be let through.
///
/// ```
/// use tiebreak::fence::{TokenError, token_of};
/// use tiebreak::ids::{Term, Token};
///
/// assert_eq!(token_of(Some("30064771072")), Ok(Token::of(Term(7))));
/// assert_eq!(token_of(None), Err(TokenError::Missing));
/// assert!(token_of(Some("+7")).is_err());
/// ```
pub fn token_of(value: Option<&str>) -> Result<Token, TokenError> {
    let text = value.ok_or(TokenError::Missing)?.trim_matches([' ', '\t']);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.map(Token).ok_or_else(|| TokenError::NotANumber { text: text.chars().take(40).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_decimal_numbers_of_64_bits_are_tokens() {
        for (text, token) in [("0", 0), (" 7 ", 7), ("007", 7), ("18446744073709551615", u64::MAX)] {
            assert_eq!(token_of(Some(text)), Ok(Token(token)));
        }
        let long = "9".repeat(100);
        for text in ["", " ", "-1", "+1", "1 2", "1_0", "0x7", "7.0", "18446744073709551616", "٧", &long] {
            let error = token_of(Some(text)).unwrap_err();
            assert!(error.to_string().len() < 300, "{error}");
        }
    }
}
