//! The house kept true: who may use whom, what a script's header says, and numbers and letters that two languages know.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use minutehand::limits;
use minutehand::model::State;
use minutehand::model::digits;
use minutehand::model::event::Move;
use minutehand::store::{SCRIPTS, Script};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a folder with this ending, relative to the root, sorted.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, ending: &str, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, ending, out);
            } else if path.extension().is_some_and(|found| found == ending) {
                out.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    let mut out = Vec::new();
    walk(&root().join(folder), ending, &mut out);
    out.sort();
    out
}

// ---- modules ----

/// The modules, lowest first: each may use those before it.
const ORDER: [&str; 18] = [
    "limits",
    "clock",
    "metric",
    "model",
    "keys",
    "webhook",
    "codec",
    "store",
    "pod",
    "executor",
    "client",
    "embed",
    "http",
    "dev",
    "settings",
    "telemetry",
    "cli",
    "testing",
];
/// Pairs that stand in order and yet shall not know each other.
const STRANGERS: [(&str, &str); 4] =
    [("executor", "pod"), ("client", "pod"), ("client", "executor"), ("dev", "http")];

/// A file's text without comments and without what is compiled for tests only.
fn production(path: &Path) -> String {
    let text = read(path);
    let mut out = String::new();
    let (mut lines, mut gated) = (text.lines().peekable(), false);
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        if bare.starts_with("//") {
            continue;
        }
        if bare.starts_with("#[cfg(test)]") || bare.starts_with("#[cfg(any(test") {
            gated = true;
            continue;
        }
        if gated {
            if bare.starts_with('#') {
                continue;
            }
            gated = false;
            // Skip the item: to its semicolon, or to the closing brace in the column where it began.
            let indent = line.len() - bare.len();
            if !bare.ends_with(';') {
                let close = |line: &str| {
                    line.len() - line.trim_start().len() == indent && line.trim_start().starts_with('}')
                };
                for line in lines.by_ref() {
                    if close(line) {
                        break;
                    }
                }
            }
            continue;
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Files that are modules for tests only, as their parents declare them.
fn is_for_tests(path: &Path) -> bool {
    let (Some(parent), Some(stem)) = (path.parent(), path.file_stem()) else { return false };
    let declaring = root().join(parent).join("mod.rs");
    let Ok(text) = fs::read_to_string(declaring) else { return false };
    let name = format!("mod {};", stem.to_string_lossy());
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .any(|pair| pair[0].contains("cfg(") && pair[0].contains("test") && pair[1].ends_with(&name))
}

/// The first names behind every `crate::` of a text.
fn crate_names(text: &str) -> BTreeSet<String> {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut out = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            out.insert(word(rest));
            continue;
        };
        let (mut depth, mut fresh) = (0, true);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => fresh = true,
                c if fresh && !c.is_whitespace() => {
                    out.insert(word(&list[at..]));
                    fresh = false;
                }
                _ => {}
            }
        }
    }
    out
}

#[test]
fn modules_use_only_those_below_them() {
    let level = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for path in files("src", "rs").iter().filter(|path| !is_for_tests(path)) {
        let parts: Vec<_> =
            path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        let module = parts[1].trim_end_matches(".rs");
        if module == "lib" || module == "main" {
            continue;
        }
        let Some(own) = level(module) else {
            wrong.push(format!("{} is in no module of the list", path.display()));
            continue;
        };
        seen.insert(module.to_owned());
        for used in crate_names(&production(path)) {
            let Some(other) = level(&used) else { continue };
            if other > own || STRANGERS.contains(&(module, used.as_str())) {
                wrong.push(format!("{} uses {used}", path.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(seen.len() > 10, "{seen:?}");
}

#[test]
fn only_the_store_names_the_client_library() {
    for path in files("src", "rs") {
        if !path.starts_with("src/store") {
            assert!(!production(&path).contains("fred::"), "{} names fred", path.display());
        }
    }
}

#[test]
fn the_crate_stands_on_the_packages_it_says() {
    let manifest = read("Cargo.toml");
    let dependencies =
        manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap();
    let names: BTreeSet<&str> =
        dependencies.lines().filter_map(|line| line.split_once(" = ")).map(|(n, _)| n).collect();
    for name in ["fred", "tokio", "serde", "rmp-serde", "tracing", "metrics", "metrics-exporter-prometheus"] {
        assert!(names.contains(name), "{name} is not among the dependencies");
    }
}

#[test]
fn names_behind_crate_are_found() {
    let text = "use crate::a::b; use crate::{c, d::{e, f}, g}; let x = crate::h(); mycrate::i; $crate::j";
    let found: Vec<String> = crate_names(text).into_iter().collect();
    assert_eq!(found, ["a", "c", "d", "g", "h"]);
}

// ---- scripts ----

fn lua_file(script: &Script) -> PathBuf {
    Path::new("lua").join(script.name.replace('.', "/")).with_extension("lua")
}

fn flags(script: &Script) -> &'static str {
    script.body.lines().next().unwrap().strip_prefix("#!lua flags=").unwrap()
}

/// The contract at a file's beginning: each line's name with its text, continued lines joined.
fn header(text: &str) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for line in text.lines().map_while(|line| line.strip_prefix("--")) {
        match line.strip_prefix(' ').filter(|line| !line.starts_with(' ')) {
            Some(line) => {
                let (name, rest) = line.split_once([' ', ':']).unwrap_or((line, ""));
                out.push((name.to_owned(), rest.trim().to_owned()));
            }
            None => {
                if let Some((_, text)) = out.last_mut() {
                    text.push(' ');
                    text.push_str(line.trim());
                }
            }
        }
    }
    out
}

#[test]
fn every_script_has_its_file_and_every_file_its_script() {
    let own: BTreeSet<PathBuf> = SCRIPTS.iter().map(|script| lua_file(script)).collect();
    assert_eq!(own.len(), SCRIPTS.len(), "two scripts have one name");
    let all = files("lua", "lua");
    let (fragments, operations): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|path| path.starts_with("lua/lib"));
    assert_eq!(operations.into_iter().collect::<BTreeSet<_>>(), own);
    for script in SCRIPTS {
        assert!(
            script.body.ends_with(&read(lua_file(script))),
            "{} is not at the end of its script",
            script.name
        );
    }
    for fragment in fragments {
        let text = read(&fragment);
        let users = SCRIPTS.iter().filter(|script| script.body.contains(&text)).count();
        assert!(users > 0, "{} is used by no script", fragment.display());
        let stem = fragment.with_extension("");
        let name = stem.strip_prefix("lua").unwrap().display().to_string();
        assert!(
            text.starts_with(&format!("-- {name}: ")),
            "{name} does not say what it is in its first line"
        );
    }
}

#[test]
fn headers_are_contracts() {
    for script in SCRIPTS {
        let text = read(lua_file(script));
        let header = header(&text);
        let names: Vec<&str> = header.iter().map(|(name, _)| name.as_str()).collect();
        let verb = script.name.replace('.', "/");
        let expected = [verb.as_str(), "moves", "keys", "args", "gives", "bound", "events", "memory"];
        assert_eq!(names, expected, "{}", script.name);
        for (name, said) in &header {
            assert!(!said.is_empty(), "{}: {name} says nothing", script.name);
        }
        let memory = match flags(script) {
            "" => "refused when full",
            flags => flags,
        };
        assert_eq!(
            header[7].1, memory,
            "{}: what the header says of memory and what the flags do",
            script.name
        );
        assert!(
            header[3].1.starts_with("1 now_ms or \"\""),
            "{}: the time is the first argument",
            script.name
        );
        assert!(header[4].1.starts_with("OK {stamp"), "{}: an answer is a word and the time", script.name);
        assert!(header[2].1.contains(":meta"), "{}: the declared keys", script.name);
    }
}

#[test]
fn headers_move_tasks_only_as_the_states_allow() {
    let mut told = BTreeSet::new();
    for script in SCRIPTS {
        let header = header(&read(lua_file(script)));
        for part in header[1].1.split(';') {
            // `running: …` speaks of phases within one state.
            let Some((from, to)) = part.split_once(" -> ").filter(|(from, _)| !from.contains(':')) else {
                continue;
            };
            let from = from.split_whitespace().filter_map(State::from_name).next_back();
            for to in to.split('|') {
                let to = to.split_whitespace().next().and_then(State::from_name);
                let to = to.unwrap_or_else(|| panic!("{}: `{part}` names no state", script.name));
                if let Some(from) = from {
                    let legal = from.may_become(to) || (from, to) == (State::Pending, State::Pending);
                    assert!(legal, "{}: {from} -> {to} is not legal", script.name);
                    told.insert((from, to));
                }
            }
        }
    }
    for pair in [
        (State::Pending, State::Running),
        (State::Pending, State::Cancelled),
        (State::Running, State::Succeeded),
        (State::Running, State::Pending),
        (State::Running, State::Dead),
        (State::Dead, State::Deleted),
    ] {
        assert!(told.contains(&pair), "no script says {pair:?}");
    }
}

#[test]
fn no_script_walks_the_whole_server() {
    for script in SCRIPTS {
        let code = script.body.lines().filter(|line| !line.starts_with("--"));
        for line in code {
            for word in [
                "'KEYS'",
                "'SCAN'",
                "'RANDOMKEY'",
                "'FLUSHALL'",
                "'FLUSHDB'",
                "math.random",
                "cjson",
                "cmsgpack",
            ] {
                assert!(!line.contains(word), "{}: {line}", script.name);
            }
            // Counted walks of one key are bounded; others are not.
            if line.contains("SCAN'") {
                assert!(line.contains("'COUNT'"), "{}: {line}", script.name);
            }
        }
    }
}

// ---- a look at the language ----

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Sign(char),
    Text,
}

/// Names and signs of a script; comments are left out, strings and numbers are blank.
fn tokens(text: &str) -> Vec<Token> {
    let (mut out, bytes, mut at) = (Vec::new(), text.as_bytes(), 0);
    let mut line_start = true;
    while at < bytes.len() {
        let rest = &text[at..];
        let c = rest.chars().next().unwrap();
        if rest.starts_with("--") || (line_start && rest.starts_with("#!")) {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if c == '\'' || c == '"' {
            let mut end = at + 1;
            while bytes[end] != bytes[at] {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            out.push(Token::Text);
            at = end + 1;
        } else if c.is_ascii_digit() {
            at += rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
            out.push(Token::Text);
        } else if c.is_ascii_alphabetic() || c == '_' {
            let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            out.push(Token::Name(rest[..len].to_owned()));
            at += len;
        } else {
            if !c.is_whitespace() {
                out.push(Token::Sign(c));
            }
            at += c.len_utf8();
        }
        line_start = at > 0 && bytes.get(at - 1) == Some(&b'\n');
    }
    out
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];
const GLOBALS: [&str; 14] = [
    "ARGV", "KEYS", "redis", "string", "table", "math", "ipairs", "pairs", "tonumber", "tostring", "type",
    "unpack", "pcall", "error",
];
const MORE_GLOBALS: [&str; 2] = ["next", "select"];

/// Names that are read or written before they are declared: the server would stop the script there.
fn undeclared(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut known: BTreeSet<&str> = GLOBALS.into_iter().chain(MORE_GLOBALS).collect();
    let (mut out, mut depth, mut at) = (Vec::new(), 0, 0);
    let sign = |at: usize, c: char| tokens.get(at) == Some(&Token::Sign(c));
    let name = |at: usize| match tokens.get(at) {
        Some(Token::Name(name)) => Some(name.as_str()),
        _ => None,
    };
    // `local a, b = …`: the names count from the next statement on, but nobody here uses that.
    while at < tokens.len() {
        match &tokens[at] {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') => depth -= 1,
            Token::Name(word) => match word.as_str() {
                "local" if name(at + 1) == Some("function") => {
                    known.insert(name(at + 2).unwrap());
                    at += 2;
                }
                "local" | "for" => {
                    let mut next = at + 1;
                    while let Some(declared) = name(next) {
                        known.insert(declared);
                        if !sign(next + 1, ',') {
                            break;
                        }
                        next += 2;
                    }
                    at = next;
                }
                word if KEYWORDS.contains(&word) => {}
                word => {
                    let member =
                        at > 0 && (sign(at - 1, '.') && !(at > 1 && sign(at - 2, '.')) || sign(at - 1, ':'));
                    let field = depth > 0
                        && sign(at + 1, '=')
                        && !sign(at + 2, '=')
                        && (sign(at - 1, '{') || sign(at - 1, ',') || sign(at - 1, ';'));
                    if !member && !field && !known.contains(word) {
                        out.push(word.to_owned());
                    }
                }
            },
            _ => {}
        }
        // A function's parameters.
        let named =
            name(at).is_some_and(|word| word == "function" || name(at.wrapping_sub(1)) == Some("function"));
        if named && sign(at + 1, '(') {
            let mut next = at + 2;
            while let Some(declared) = name(next) {
                known.insert(declared);
                next += if sign(next + 1, ',') { 2 } else { 1 };
            }
            at = next;
        }
        at += 1;
    }
    out
}

#[test]
fn scripts_read_no_global_that_is_not_there() {
    let planted = "local a = 1 local function f(x, y) return x + y + b end for i, v in ipairs({ k = a }) do c = i .. v end";
    assert_eq!(undeclared(planted), ["b", "c"]);
    for script in SCRIPTS {
        assert_eq!(undeclared(script.body), Vec::<String>::new(), "{}", script.name);
    }
}

// ---- numbers and letters in both languages ----

/// The number behind the first `before` in a file.
fn number_after(file: &str, before: &str) -> i64 {
    let text = read(file);
    let at = text.find(before).unwrap_or_else(|| panic!("{file} has no `{before}`"));
    let digits: String = text[at + before.len()..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{file} has no number behind `{before}`"))
}

#[test]
fn numbers_are_the_same_in_both_languages() {
    let same = |file: &str, before: &str, limit: i64| {
        assert_eq!(number_after(file, before), limit, "{file}: {before}")
    };
    let claim = "lua/due/claim.lua";
    same(claim, "local MOST = { ripen = ", limits::RIPEN_MAX_ROWS as i64);
    same(claim, ", sets = ", limits::DUE_SETS_VISITED_MAX as i64);
    same(claim, "local REAP, LOOKS, LEAST = ", limits::REAP_MAX_ROWS as i64);
    assert!(read(claim).contains(&format!(
        "local AWAY_MS, RETURN_MS = {}, {}\n",
        limits::AWAY_MS,
        limits::RETURN_MS
    )));
    same("lua/lib/place.lua", "local SPLIT = ", limits::DUE_SET_SPLIT_ROWS as i64);
    same("lua/lib/fail.lua", "local ATTEMPTS = ", limits::ATTEMPTS_KEPT_MAX as i64);
    same("lua/lib/fail.lua", "text = sub(text, 1, ", limits::ERROR_TAIL_MAX_BYTES as i64);
    same("lua/lib/outcome.lua", "text or '', 1, ", limits::ERROR_TAIL_MAX_BYTES as i64);
    same("lua/lib/outcome.lua", "local OUTBOX = ", limits::OUTBOX_MAX_ROWS as i64);
    same("lua/outcome/read.lua", "if most > ", limits::OUTCOME_READ_MAX_ROWS as i64);
    same("lua/lib/event.lua", "text = sub(text, 1, ", limits::ERROR_TAIL_MAX_BYTES as i64);
    same("lua/due/claim.lua", "if losses >= ", i64::from(limits::UNCOUNTED_LOSSES_MAX));
    same("lua/intake/submit.lua", "age > ", limits::RECENT_MIN_MS);
    same("lua/lib/recent.lua", "back < ", limits::RECENT_MAX_MS / 10_000);
    same("lua/due/claim.lua", "'-inf', ten - ", limits::RECENT_MIN_MS / 10_000);
    same("lua/due/claim.lua", "tonumber(t) > ten - ", limits::RECENT_MAX_MS / 10_000);
    // What is kept beyond the shortest time is shared by the strings of the rest.
    let strings = ((limits::RECENT_MAX_MS - limits::RECENT_MIN_MS) / 10_000) as usize;
    let each = number_after("lua/due/claim.lua", "'recent:' .. t) <= ") as usize;
    assert!(each * strings <= limits::RECENT_MAX_BYTES && (each + 100) * strings > limits::RECENT_MAX_BYTES);
}

#[test]
fn digits_are_the_same_in_both_languages() {
    let text = read("lua/lib/digit.lua");
    let lua = text.split("local DIGITS = '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    let ours: String = (0..64)
        .map(|value| {
            let mut digit = [0];
            digits::write(&mut digit, value);
            char::from(digit[0])
        })
        .collect();
    assert_eq!(lua, ours);
}

/// The rows of the Markdown table under this head, cells trimmed.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let at = text.find(head).unwrap_or_else(|| panic!("no table {head}"));
    let rows = text[at..].lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn the_states_in_the_scripts_manual_are_the_states() {
    let text = read("lua/README.md");
    let rows = table(&text, "| state | letter | where | may become |");
    let told: Vec<(&str, &str, &str)> =
        rows.iter().map(|row| (row[0].as_str(), row[1].as_str(), row[3].as_str())).collect();
    let letters: Vec<String> = State::ALL.iter().map(|state| state.letter().to_string()).collect();
    let next: Vec<String> = State::ALL
        .iter()
        .map(|state| state.next().iter().map(|state| state.name()).collect::<Vec<_>>().join(", "))
        .collect();
    let expected: Vec<(&str, &str, &str)> = State::ALL
        .iter()
        .zip(letters.iter().zip(&next))
        .map(|(state, (letter, next))| (state.name(), letter.as_str(), next.as_str()))
        .collect();
    let order = |mut list: Vec<(&'_ str, &'_ str, &'_ str)>| -> Vec<(String, String, String)> {
        list.sort_unstable();
        list.into_iter().map(|(a, b, c)| (a.into(), b.into(), c.into())).collect()
    };
    assert_eq!(order(told), order(expected));
}

#[test]
fn the_letters_of_events_are_those_that_scripts_write() {
    let text = read("lua/README.md");
    let listed: BTreeSet<String> =
        table(&text, "| letter | move |").into_iter().map(|row| row[0].clone()).collect();
    for letter in &listed {
        assert!(Move::from_letter(letter.as_bytes()[0]).is_some(), "{letter} is no move");
    }
    // rare(id, grant, 'X', …)
    let mut written = BTreeSet::new();
    for path in files("lua", "lua") {
        let text = read(&path);
        for (at, _) in text.match_indices("rare(id, ") {
            let call = &text[at..text[at..].find('\n').map_or(text.len(), |end| at + end)];
            let letter = call.split(", '").nth(1).filter(|rest| rest.as_bytes().get(1) == Some(&b'\''));
            if let Some(letter) = letter {
                written.insert(letter[..1].to_owned());
                assert!(Move::from_letter(letter.as_bytes()[0]).is_some(), "{}: {call}", path.display());
            }
        }
    }
    assert!(written.len() > 6, "{written:?}");
    for letter in &written {
        let ends =
            State::from_letter(letter.chars().next().unwrap()).is_some_and(|state| state != State::Running);
        assert!(ends || listed.contains(letter), "{letter} is not explained in lua/README.md");
    }
}

// ---- limits ----

/// Every limit of `src/limits.rs`: name, value, and what its comment says.
fn limit_rows() -> Vec<(String, i64, String)> {
    let (mut out, mut said): (Vec<(String, i64, String)>, Vec<String>) = (Vec::new(), Vec::new());
    for line in read("src/limits.rs").lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            said.push(text.to_owned());
        } else if let Some(rest) = line.strip_prefix("pub const ") {
            let (name, rest) = rest.split_once(": ").unwrap();
            let value = rest.split_once(" = ").unwrap().1.trim_end_matches(';');
            let known: BTreeMap<&str, i64> =
                out.iter().map(|(name, value, _)| (name.as_str(), *value)).collect();
            out.push((name.to_owned(), product(value, &known), std::mem::take(&mut said).join(" ")));
        } else {
            said.clear();
        }
    }
    out
}

/// The value of `1_000`, `4 << 20`, `10 * 366 * DAY`.
fn product(text: &str, known: &BTreeMap<&str, i64>) -> i64 {
    let number = |word: &str| {
        let word = word.trim();
        known
            .get(word)
            .copied()
            .unwrap_or_else(|| word.replace('_', "").parse().unwrap_or_else(|_| panic!("{text}")))
    };
    match text.split_once("<<") {
        Some((left, right)) => product(left, known) << number(right),
        None => text.split('*').map(number).product(),
    }
}

/// `docs/limits.md` shows users what `src/limits.rs` says. `MINUTEHAND_WRITE_DOCS=1` writes it anew.
#[test]
fn the_page_of_limits_is_up_to_date() {
    let mut page = String::from(
        "# Limits and defaults\n\nWritten from `src/limits.rs` by `MINUTEHAND_WRITE_DOCS=1 cargo test --features testing --test tree`.\nThe unit is in the name.\n\n| name | value | what and why |\n| --- | ---: | --- |\n",
    );
    let rows = limit_rows();
    assert!(rows.len() > 40);
    for (name, value, said) in rows {
        assert!(!said.is_empty(), "{name} has no reason");
        let mut digits = value.to_string();
        let mut at = digits.len();
        while at > 3 {
            at -= 3;
            digits.insert(at, ',');
        }
        page.push_str(&format!("| `{}` | {digits} | {} |\n", name.to_lowercase(), said.replace('|', "\\|")));
    }
    let path = root().join("docs/limits.md");
    if std::env::var_os("MINUTEHAND_WRITE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let stands = fs::read_to_string(&path).unwrap_or_default();
    assert!(stands == page, "docs/limits.md differs from src/limits.rs; run with MINUTEHAND_WRITE_DOCS=1");
}
