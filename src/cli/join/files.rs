//! The configuration file, made whole and amended by the table.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::config::OtherConfig;

/// Replaces a file whole, keeping owner and mode; durable on return.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = beside(path, ".draft");
    let written = (|| {
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&draft)?;
        file.write_all(text.as_bytes())?;
        if let Ok(before) = fs::metadata(path) {
            let now = file.metadata()?;
            if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
                std::os::unix::fs::chown(&draft, Some(before.uid()), Some(before.gid()))?;
            }
            file.set_permissions(before.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&draft, path)?;
        sync_parent(path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// The same name with something behind it.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The lines of `[peer]` or `[witness]`.
pub(super) fn table(name: &str, other: &OtherConfig, joining: Option<&str>) -> String {
    let quoted =
        |texts: Vec<String>| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ");
    let at = quoted(other.addresses.iter().map(ToString::to_string).collect());
    let keys = quoted(other.keys.iter().map(ToString::to_string).collect());
    let mut text = format!("[{name}]\nnode = \"{}\"\n", other.node);
    if !other.addresses.is_empty() {
        text += &format!("addresses = [{at}]\n");
    }
    text += &format!("keys = [{keys}]\n");
    if let Some(joining) = joining {
        text += "# It has not joined yet: `tiebreak agent`, or `tiebreak join` with --wait, fill in its key and addresses.\n";
        text += &format!("joining = \"{joining}\"\n");
    }
    text
}

/// The text with another table in the place of the one of that name; every other line stays.
pub(super) fn with_table(text: &str, name: &str, table: &str) -> String {
    let (mut out, mut inside, mut put) = (String::new(), false, false);
    for line in text.lines() {
        let head = line.trim_start();
        if head.starts_with('[') {
            inside =
                head.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(head, _)| head.trim())
                    == Some(name);
            if inside {
                out += table;
                out += "\n";
                put = true;
            }
        }
        if !inside {
            out += line;
            out.push('\n');
        }
    }
    if !put {
        out += "\n";
        out += table;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_of_that_name_changes() {
        let text =
            "a = 1\n\n[peer]\nnode = \"b\"\nkeys = []\n\n[agent]\nhttp = \"x\" # [peer]\n[agent.times]\n";
        let changed = with_table(text, "peer", "[peer]\nnode = \"c\"\n");
        assert_eq!(
            changed,
            "a = 1\n\n[peer]\nnode = \"c\"\n\n[agent]\nhttp = \"x\" # [peer]\n[agent.times]\n"
        );
        assert_eq!(with_table(&changed, "peer", "[peer]\nnode = \"c\"\n"), changed);
    }
}
