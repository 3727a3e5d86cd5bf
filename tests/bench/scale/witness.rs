//! The shipped program as a witness, and what the kernel says of it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tiebreak::{Fingerprint, Identity};

pub struct Witness {
    binary: PathBuf,
    directory: PathBuf,
    pub address: SocketAddr,
    http: SocketAddr,
    pub key: Fingerprint,
    child: Option<Child>,
}

/// Resident memory in kB.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    pub resident: u64,
    pub anonymous: u64,
    pub peak: u64,
}

impl Witness {
    /// Its configuration, with a table for each cluster, and its blank votes.
    pub fn make(binary: &Path, directory: &Path, clusters: &[(String, [Fingerprint; 2])]) -> Witness {
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
        let http = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
        let key = Identity::create(&directory.join("w.pem")).expect("a key").fingerprint();
        let mut text = format!(
            "node = \"w\"\nkey = \"w.pem\"\nstate = \"state\"\nlisten = [\"{free}\"]\nhttp = \"{http}\"\n"
        );
        for (name, keys) in clusters {
            text += &format!("[[cluster]]\nname = \"{name}\"\n");
            for (node, key) in super::pair::NODES.iter().zip(keys) {
                text += &format!("[[cluster.replica]]\nnode = \"{node}\"\nkeys = [\"{key}\"]\n");
            }
        }
        fs::write(directory.join("w.toml"), text).expect("written");
        let made = Command::new(binary)
            .args(["init", "--config"])
            .arg(directory.join("w.toml"))
            .output()
            .expect("it runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Witness { binary: binary.into(), directory: directory.into(), address: free, http, key, child: None }
    }

    pub fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut command = Command::new(&self.binary);
        command.args(["witness", "--config"]).arg(self.directory.join("w.toml"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.expect("the binary runs"));
    }

    /// Ends it: with a goodbye, or as if it had crashed.
    pub fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        let _ = kill_process(Pid::from_child(&child), signal);
        let _ = child.wait();
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("w.log")
    }

    pub fn memory(&self) -> Memory {
        let status = fs::read_to_string(self.process("status")).unwrap_or_default();
        let kb = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
        };
        Memory { resident: kb("VmRSS"), anonymous: kb("RssAnon"), peak: kb("VmHWM") }
    }

    /// Processor time that it has used, in user space and in the kernel.
    pub fn processor(&self) -> Duration {
        let stat = fs::read_to_string(self.process("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// The numbers of its page for monitors whose names begin so, by the rest of their names.
    pub fn metrics(&self, name: &str) -> Vec<(String, f64)> {
        let page = self.page().unwrap_or_default();
        let number = |line: &str| {
            let (rest, number) = line.strip_prefix(name)?.rsplit_once(' ')?;
            Some((rest.into(), number.parse().ok()?))
        };
        page.lines().filter_map(number).collect()
    }

    fn page(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.http)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    fn process(&self, file: &str) -> PathBuf {
        let pid = self.child.as_ref().map(Child::id).unwrap_or_default();
        PathBuf::from(format!("/proc/{pid}/{file}"))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.end(Signal::KILL);
    }
}
