//! Where a node is dialled: a name or an address, and a port.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// `host:port`, where host is a name, an IPv4 address or an IPv6 address in brackets. Names are kept as names and
/// resolved again at each attempt.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// UDP port, not 0.
    pub port: u16,
}

/// Why a text is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostPortError {
    /// Host without port.
    #[error(
        "the port is missing: write it as `host:port`, for example `b.example:7400` or `[2001:db8::1]:7400`"
    )]
    NoPort,
    /// Not a port.
    #[error("{0:?} is not a port: it is a number from 1 to 65535")]
    Port(String),
    /// Not a host.
    #[error("{0:?} is neither a host name nor an IP address")]
    Host(String),
    /// The colons of an address cannot be told from the one before the port.
    #[error("an IPv6 address stands in brackets: `[{0}]:port`")]
    Brackets(Ipv6Addr),
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Err(HostPortError::Brackets(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(HostPortError::NoPort)?;
        let bad_host = || HostPortError::Host(host.into());
        let host = match host.strip_prefix('[') {
            Some(rest) => {
                let inner = rest.strip_suffix(']').ok_or_else(bad_host)?;
                // A scope (`fe80::1%eth0`) is left to the resolver.
                let address = inner.split_once('%').map_or(inner, |(address, _)| address);
                address.parse::<Ipv6Addr>().map_err(|_| bad_host())?;
                inner
            }
            None => match host.parse::<Ipv6Addr>() {
                Ok(address) => return Err(HostPortError::Brackets(address)),
                Err(_) => host,
            },
        };
        let plain = |c: char| c.is_alphanumeric() || ".-_:%".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
            return Err(bad_host());
        }
        match port.parse() {
            Ok(port) if port > 0 => Ok(HostPort { host: host.into(), port }),
            _ => Err(HostPortError::Port(port.into())),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_both_kinds_of_address_are_read_and_printed() {
        for text in ["b.example:7400", "10.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:7400"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!("b.example".parse::<HostPort>(), Err(HostPortError::NoPort));
        assert_eq!("b:0".parse::<HostPort>(), Err(HostPortError::Port("0".into())));
        assert_eq!("b:x".parse::<HostPort>(), Err(HostPortError::Port("x".into())));
        assert!(matches!("::1".parse::<HostPort>(), Err(HostPortError::Brackets(_))));
        assert!(matches!("2001:db8:1:2:3:4:5:6:7400".parse::<HostPort>(), Err(HostPortError::Brackets(_))));
        assert!(matches!(":7400".parse::<HostPort>(), Err(HostPortError::Host(_))));
        assert!(matches!("a b:7400".parse::<HostPort>(), Err(HostPortError::Host(_))));
    }
}
