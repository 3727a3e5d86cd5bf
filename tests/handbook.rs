//! The pages for operators say what is so: every log line has its row, commands are those of the program, tests exist.
#![cfg(feature = "cli")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use tiebreak::cli::Cli;

const PAGES: &[&str] = &[
    "deploy/operations.md",
    "deploy/raspberry-pi.md",
    "deploy/joining.md",
    "deploy/threats.md",
    "SECURITY.md",
];

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sources(under: &str) -> Vec<(PathBuf, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(under)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                found.push((path, text));
            }
        }
    }
    found
}

/// The last string of the call whose arguments begin here: the message. Every value in it is a `…`.
fn message(arguments: &str) -> String {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    let (mut text, mut last) = (String::new(), String::new());
    for c in arguments.chars() {
        match (quoted, escaped, c) {
            (true, true, '\n') => escaped = false,
            (true, true, c) => {
                text.push(c);
                escaped = false;
            }
            (true, false, '\\') => escaped = true,
            (true, false, '"') => {
                quoted = false;
                last = std::mem::take(&mut text);
            }
            (true, false, c) => text.push(c),
            (false, _, '"') => quoted = true,
            (false, _, '(') => depth += 1,
            (false, _, ')') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    let (mut said, mut inside) = (String::new(), false);
    for c in last.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match c {
            '{' => {
                inside = true;
                said.push('…');
            }
            '}' => inside = false,
            c if !inside => said.push(c),
            _ => {}
        }
    }
    said
}

/// What the product logs at warning and above. The demo talks to whoever watches it.
fn logged() -> BTreeSet<(&'static str, String)> {
    let mut all = BTreeSet::new();
    for (path, text) in sources("src") {
        if path.components().any(|part| part.as_os_str() == "demo") {
            continue;
        }
        for (level, call) in [("warn", "warn!("), ("error", "error!(")] {
            for (at, _) in text.match_indices(call) {
                all.insert((level, message(&text[at + call.len()..])));
            }
        }
    }
    all
}

/// The rows of the handbook: level and line. A line may be cut with `[…]`.
fn rows(page: &str) -> Vec<(String, String)> {
    let cells = |line: &str| -> Option<(String, String)> {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let level = cells.next()?.trim();
        let line = cells.next()?.trim().trim_matches('`').trim();
        // A line that begins with a quotation stands between two marks on each side.
        let quoted = cells.next().is_some() && matches!(level, "warn" | "error");
        quoted.then(|| (level.to_owned(), line.to_owned()))
    };
    page.lines().filter_map(cells).collect()
}

#[test]
fn every_warning_and_error_has_its_row_in_the_handbook_and_every_row_its_line() {
    let (logged, rows) = (logged(), rows(&page("deploy/operations.md")));
    assert!(logged.len() > 30, "the sources are not read as they are written: {logged:#?}");
    let is_of = |row: &(String, String), line: &(&str, String)| {
        let (said, row_says) = (line.1.as_str(), row.1.as_str());
        row.0 == line.0
            && match row_says.strip_suffix(" […]") {
                Some(beginning) => said.starts_with(beginning),
                None => said == row_says,
            }
    };
    for line in &logged {
        let times = rows.iter().filter(|row| is_of(row, line)).count();
        assert_eq!(times, 1, "deploy/operations.md has {times} rows for {line:?}");
    }
    for row in &rows {
        assert!(logged.iter().any(|line| is_of(row, line)), "nothing logs {row:?} any more");
    }
}

/// A code that is one: the program refuses any other word before it looks further.
fn code() -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("w.toml");
    fs::write(
        &file,
        "node = \"w\"\nkey = \"w.pem\"\nstate = \"w\"\nlisten = [\"127.0.0.1:7400\"]\ncluster = []\n",
    )
    .expect("written");
    let run = |arguments: &[&str], path: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        let output = command.args(arguments).arg(path).output().expect("the binary runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    run(&["keys", "new"], &directory.path().join("w.pem"));
    run(&["init", "--config"], &file);
    run(&["invite", "orders", "--config"], &file)
}

/// The command lines of `tiebreak` in the blocks of a page, without prompts, comments, and what runs them.
fn command_lines(page: &str) -> Vec<String> {
    let (mut found, mut block) = (Vec::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            block = !block;
        }
        let line = line.split(" #").next().unwrap_or("").trim();
        let line = line.split_once("$ ").map_or(line, |(_, command)| command);
        for command in line.split("&&").filter(|_| block) {
            let command = command.trim().trim_start_matches("runuser -u tiebreak -- ");
            if command.starts_with("tiebreak ") {
                found.push(command.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_command_line_of_the_pages_is_one_that_the_program_takes() {
    let (code, mut seen) = (code(), 0);
    for name in PAGES {
        for line in command_lines(&page(name)) {
            let is_code = |word: &str| matches!(word, "CODE" | "CODE2");
            let words = line.split_whitespace().map(|word| if is_code(word) { &code } else { word });
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{name}: {line}\n{error}");
            }
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} command lines were found");
}

#[test]
fn every_test_that_the_pages_name_exists() {
    let all: String =
        ["src", "tests"].iter().flat_map(|under| sources(under)).map(|(_, text)| text).collect();
    let is_name = |word: &&str| {
        word.matches('_').count() > 2
            && word.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let mut named = 0;
    for name in PAGES {
        for word in page(name).split(['`', ' ', '\n']).filter(is_name) {
            named += 1;
            assert!(all.contains(&format!("fn {word}(")), "{name}: there is no test {word}");
        }
    }
    assert!(named > 20, "only {named} tests are named");
}
