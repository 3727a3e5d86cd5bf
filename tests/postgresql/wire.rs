//! As much of PostgreSQL's protocol as a client needs that wants to know what was acknowledged, and when.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Between two looks at whether to go on waiting.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Answers that are longer are not of these tests.
const MESSAGE_BYTES_MAX: usize = 1 << 24;

/// A statement was not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed {
    /// It certainly did nothing: the server said so.
    Refused(String),
    /// Nobody knows.
    Unknown(String),
}

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// As the superuser, who is trusted.
    pub fn connect(address: SocketAddr, patience: Duration) -> Result<Client, Failed> {
        let refused = |error: std::io::Error| Failed::Refused(error.to_string());
        let stream = TcpStream::connect_timeout(&address, patience).map_err(refused)?;
        stream.set_read_timeout(Some(LOOK_EVERY)).map_err(refused)?;
        stream.set_write_timeout(Some(patience)).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let words = b"user\0postgres\0database\0postgres\0\0";
        let mut start = u32::try_from(words.len() + 8).expect("short").to_be_bytes().to_vec();
        start.extend(196_608_u32.to_be_bytes());
        start.extend(words);
        let mut client = Client { stream, buffer: Vec::new() };
        client.stream.write_all(&start).map_err(refused)?;
        let until = Instant::now() + patience;
        client.answer(&mut || Instant::now() < until).map_err(|failed| match failed {
            Failed::Unknown(why) | Failed::Refused(why) => Failed::Refused(why),
        })?;
        Ok(client)
    }

    /// One transaction; its rows. `goes_on` is asked while nothing comes.
    pub fn query(
        &mut self,
        sql: &str,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Vec<Vec<String>>, Failed> {
        let mut message = vec![b'Q'];
        message.extend(u32::try_from(sql.len() + 5).expect("short").to_be_bytes());
        message.extend(sql.as_bytes());
        message.push(0);
        self.stream.write_all(&message).map_err(|error| Failed::Unknown(error.to_string()))?;
        self.answer(&mut goes_on)
    }

    /// With a bound.
    pub fn ask(&mut self, sql: &str, patience: Duration) -> Result<Vec<Vec<String>>, Failed> {
        let until = Instant::now() + patience;
        self.query(sql, || Instant::now() < until)
    }

    fn answer(&mut self, goes_on: &mut dyn FnMut() -> bool) -> Result<Vec<Vec<String>>, Failed> {
        let (mut rows, mut refused, mut doubt) = (Vec::new(), None, None);
        loop {
            let (kind, body) = self.message(goes_on)?;
            match kind {
                b'D' => rows.push(row(&body)),
                b'E' => {
                    let text = fields(&body);
                    // The server ends: what it was told last may have happened.
                    if text.contains("FATAL") && !text.contains("starting up") {
                        return Err(Failed::Unknown(text));
                    }
                    refused = Some(text);
                    if refused.as_ref().is_some_and(|text| text.contains("FATAL")) {
                        break;
                    }
                }
                b'N' if fields(&body).contains("might not have been replicated") => {
                    doubt = Some(fields(&body));
                }
                b'R' if body.get(..4) != Some(&[0; 4]) => {
                    return Err(Failed::Refused("a password is asked for".into()));
                }
                b'Z' => break,
                _ => {}
            }
        }
        match (refused, doubt) {
            (Some(why), _) => Err(Failed::Refused(why)),
            (None, Some(why)) => Err(Failed::Unknown(why)),
            (None, None) => Ok(rows),
        }
    }

    fn message(&mut self, goes_on: &mut dyn FnMut() -> bool) -> Result<(u8, Vec<u8>), Failed> {
        loop {
            if let Some(length) = self.buffer.get(1..5) {
                let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
                assert!(length < MESSAGE_BYTES_MAX, "not PostgreSQL");
                if self.buffer.len() > length {
                    let message: Vec<u8> = self.buffer.drain(..=length).collect();
                    return Ok((message[0], message[5..].to_vec()));
                }
            }
            let mut bytes = [0; 65_536];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Failed::Unknown("the connection was closed".into())),
                Ok(count) => self.buffer.extend(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if !goes_on() {
                        return Err(Failed::Unknown("no answer".into()));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failed::Unknown(error.to_string())),
            }
        }
    }
}

fn row(body: &[u8]) -> Vec<String> {
    let (mut rest, mut row) = (&body[2..], Vec::new());
    while let Some((length, after)) = rest.split_at_checked(4) {
        let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        let (text, after) = after.split_at(usize::try_from(length).unwrap_or(0));
        row.push(String::from_utf8_lossy(text).into_owned());
        rest = after;
    }
    row
}

/// The texts of an error or a notice.
fn fields(body: &[u8]) -> String {
    let texts = body.split(|byte| *byte == 0).filter_map(|field| field.get(1..));
    texts.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ")
}
