//! How the source is laid out: which room may import which, no circles, what is pure, and that no two types have one name.
//!
//! These tests read `src/` as text. Comments and test modules do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The rooms from the bottom to the top: each may import the ones before it. A room is `src/NAME.rs` with `src/NAME/`.
const ROOMS: [&str; 34] = [
    // macros for all other rooms
    "macros",
    // limits as data and as text
    "rate",
    "strategy",
    "policy",
    "text",
    // what callers and the core exchange
    "decision",
    "permit_id",
    "error",
    "flow",
    "priority",
    "overflow",
    "carry_over",
    "snapshot",
    "upstream",
    "event",
    "exchange",
    // the pure decisions
    "core",
    // stores of shared limits
    "lock",
    "store",
    // acts on the decisions
    "contain_panic",
    "observe",
    "manager",
    // what callers hold
    "permit",
    "acquire",
    "limiter",
    "group",
    "builder",
    "stream",
    "keyed",
    "shared",
    // the layers of the feature `http` around limiters
    "layers",
    // adapters for operators
    "telemetry",
    // the impls of the feature `serde`
    "serialize",
    // pages of documentation
    "guide",
];

const PURE_ROOMS: [&str; 2] = ["strategy", "core"];

/// The names that are forbidden in a pure room: a runtime, a clock, a log, a lock, a thread, a waker that it wakes.
const IMPURE: [&str; 16] = [
    "tokio",
    "Instant::now",
    "SystemTime",
    "tracing",
    "println!",
    "eprintln!",
    "dbg!",
    ".wake()",
    ".wake_by_ref()",
    "notify_one",
    "notify_waiters",
    "Mutex",
    "RwLock",
    "thread::",
    "catch_unwind",
    "spawn",
];

/// Types whose names have several definitions, all of them private to their files. At most eight.
const SHARED_NAMES: [&str; 2] = [
    // a fixed number of entries in one allocation: of an arena, of a queue, of a sliding log
    "Chunk",
    // a permit with a TTL: in a gate of this process, and in the ledger of a store
    "Lease",
];

/// `["core", "gate"]` is `src/core/gate.rs`.
type Module = Vec<String>;

/// The text of each file: without comments and without tests.
type Sources = BTreeMap<Module, String>;

/// Reads all files but `lib.rs`, tests, models and what fuzzers check. Hands each to `convert`.
fn sources(convert: fn(&str) -> String) -> Sources {
    fn visit(folder: &Path, module: &[String], convert: fn(&str) -> String, sources: &mut Sources) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if ["model", "simulation", "tests", "lib", "fuzzed", "fuzzing"].contains(&name) {
                continue;
            }
            let module = [module, &[name.to_owned()]].concat();
            if path.is_dir() {
                visit(&path, &module, convert, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.insert(module, convert(&fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut sources = BTreeMap::new();
    visit(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &[],
        convert,
        &mut sources,
    );
    assert!(sources.len() > 50, "found only {} files", sources.len());
    sources
}

/// The text before the tests, and before what only the model of the schedule needs.
fn without_tests(text: &str) -> String {
    let begins = [
        "\n#[cfg(test)]\nmod tests {",
        "\n#[cfg(any(test, fuzzing))]\nmod for_model {",
    ];
    let code = begins.iter().filter_map(|begin| text.find(begin)).min();
    text[..code.unwrap_or(text.len())].to_owned()
}

fn code(text: &str) -> String {
    let text = without_tests(text);
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines
        .map(|line| line.split("// ").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// The paths in a file that begin with `crate`, `self`, `super` or a child module, each with whether it is a re-export.
fn paths(module: &[String], code: &str, sources: &Sources) -> Vec<(Module, bool)> {
    let is_name = |char: char| char.is_alphanumeric() || char == '_';
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("::") {
        let start = code[..at]
            .rfind(|char| !is_name(char))
            .map_or(0, |end| end + 1);
        let head = &code[start..at];
        if code[..start].ends_with([':', '$']) {
            continue; // in the middle of a path, or of a macro for other crates
        }
        let statement = code[..start]
            .rfind([';', '}', ']'])
            .map_or(0, |end| end + 1);
        let statement = code[statement..start].trim();
        let is_reexport = statement.starts_with("pub") && statement.ends_with("use");
        let child = [module, &[head.to_owned()]].concat();
        let base = match head {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len() - 1].to_vec(),
            _ if sources.contains_key(&child) => child,
            _ => continue,
        };
        tree(base, &mut &code[at + 2..], &mut |path| {
            paths.push((path, is_reexport));
        });
    }
    paths
}

/// Calls `found` with each path of a tree such as `a::{b, c::{d, e}}`. Leaves the text after the tree in `rest`.
fn tree(mut base: Module, rest: &mut &str, found: &mut dyn FnMut(Module)) {
    *rest = rest.trim_start();
    if let Some(inner) = rest.strip_prefix('{') {
        *rest = inner;
        while !rest.trim_start().is_empty() {
            *rest = rest.trim_start().trim_start_matches(',').trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                *rest = after;
                return;
            }
            tree(base.clone(), rest, found);
            *rest = &rest[rest.find([',', '}']).unwrap_or(rest.len())..]; // skips `as name`
        }
        return;
    }
    let end = rest
        .find(|char: char| !char.is_alphanumeric() && char != '_')
        .unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    *rest = after;
    if name == "super" {
        base.pop();
    } else if !name.is_empty() {
        base.push(name.to_owned());
    }
    match after.strip_prefix("::") {
        Some(after) => {
            *rest = after;
            tree(base, rest, found);
        }
        None => found(base),
    }
}

/// The file that defines the item of a path. Follows re-exports.
fn defined_in(path: &[String], reexports: &BTreeMap<Module, Module>, sources: &Sources) -> Module {
    for length in 1..=path.len() {
        if let Some(target) = reexports.get(&path[..length]) {
            return defined_in(
                &[target.as_slice(), &path[length..]].concat(),
                reexports,
                sources,
            );
        }
    }
    let module = (0..=path.len())
        .rev()
        .map(|length| &path[..length])
        .find(|module| sources.contains_key(*module));
    module.unwrap_or_default().to_vec()
}

/// For each file: the files that it uses, and with `with_reexports` also those that it re-exports from.
fn uses(with_reexports: bool) -> BTreeMap<Module, BTreeSet<Module>> {
    let sources = sources(code);
    let all: BTreeMap<_, _> = sources
        .iter()
        .map(|(module, code)| (module, paths(module, code, &sources)))
        .collect();
    let mut reexports = BTreeMap::new();
    for (module, paths) in &all {
        for (path, _) in paths
            .iter()
            .filter(|(path, is_reexport)| *is_reexport && !sources.contains_key(path))
        {
            reexports.insert(
                [module.as_slice(), &path[path.len() - 1..]].concat(),
                path.clone(),
            );
        }
    }
    let used = |(module, paths): (&Module, &Vec<(Module, bool)>)| {
        let used = paths
            .iter()
            .filter(|(_, is_reexport)| with_reexports || !is_reexport);
        let mut used: BTreeSet<_> = used
            .map(|(path, _)| defined_in(path, &reexports, &sources))
            .collect();
        assert!(
            !used.contains(&Vec::new()),
            "{}: import from the module, not from the root of the crate",
            name(module)
        );
        used.remove(module);
        (module.clone(), used)
    };
    all.iter()
        .map(|(module, paths)| used((module, paths)))
        .collect()
}

fn name(module: &[String]) -> String {
    format!("src/{}.rs", module.join("/"))
}

#[track_caller]
fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}\n", found.join("\n  "));
}

#[test]
fn rooms_import_only_rooms_below_them() {
    let height = |module: &Module| ROOMS.iter().position(|room| *room == module[0]);
    let uses = uses(true);
    let unlisted: Vec<_> = uses
        .keys()
        .filter(|module| height(module).is_none())
        .map(|module| name(module))
        .collect();
    assert_none("give these rooms a place in the list of rooms", &unlisted);
    let pairs = uses
        .iter()
        .flat_map(|(module, used)| used.iter().map(move |used| (module, used)));
    let upward = pairs.filter(|(module, used)| height(module) < height(used));
    let upward: Vec<_> = upward
        .map(|(module, used)| format!("{} uses {}", name(module), name(used)))
        .collect();
    assert_none("imports that run upward", &upward);
}

/// Whether a file uses another one, through any number of files between them.
fn reaches(uses: &BTreeMap<Module, BTreeSet<Module>>, from: &Module, to: &Module) -> bool {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(uses[module].iter().filter(|used| reached.insert(*used)));
    }
    reached.contains(to)
}

#[test]
fn no_files_import_each_other() {
    let uses = uses(false);
    let pairs = uses
        .iter()
        .flat_map(|(module, used)| used.iter().map(move |used| (module, used)));
    let back = pairs.filter(|(module, used)| reaches(&uses, used, module));
    let circles: Vec<_> = back
        .map(|(module, used)| format!("{} uses {}", name(module), name(used)))
        .collect();
    assert_none("imports in a circle", &circles);
}

#[test]
fn strategies_and_the_core_are_pure() {
    let sources = sources(code);
    let pure = sources
        .iter()
        .filter(|(module, _)| PURE_ROOMS.contains(&module[0].as_str()));
    let found = pure.flat_map(|(module, code)| {
        let lines = code
            .lines()
            .filter(|line| IMPURE.iter().any(|impure| line.contains(impure)));
        lines.map(|line| format!("{}: {}", name(module), line.trim()))
    });
    assert_none(
        "a pure room decides and leaves it to the manager to act",
        &found.collect::<Vec<_>>(),
    );
}

/// The name of the type that a line defines. `None` for a name that is a variable of a macro.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (kind, rest) = line.split_once(' ')?;
    let name = rest.split(|part: char| !part.is_alphanumeric()).next()?;
    let defines = ["struct", "enum", "trait", "union"].contains(&kind);
    (defines && !name.is_empty()).then_some(name)
}

#[test]
fn no_two_types_have_one_name() {
    assert!(SHARED_NAMES.len() <= 8);
    let sources = sources(code);
    let mut definitions = BTreeMap::<&str, Vec<String>>::new();
    for (module, code) in &sources {
        if module.contains(&"conformance".to_owned()) {
            continue; // a suite of tests
        }
        for defined in code.lines().filter_map(defined_type) {
            definitions.entry(defined).or_default().push(name(module));
        }
    }
    assert!(definitions.len() > 100, "found only {}", definitions.len());
    let several = definitions
        .iter()
        .filter(|(name, files)| files.len() > 1 && !SHARED_NAMES.contains(name));
    assert_none(
        "types with one name",
        &several
            .map(|(name, files)| format!("{name} in {}", files.join(", ")))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn paths_are_found_in_every_form() {
    let module = |path: &str| path.split('/').map(str::to_owned).collect::<Module>();
    let sources = ["a", "a/b", "a/b/c", "d"]
        .map(|path| (module(path), String::new()))
        .into();
    let code = code(
        "use std::fmt;\nuse crate::d::{self, E, f::{G as H, I}}; // crate::not\npub(crate) use c::J;\n/// [`crate::not`]\n\
         fn x(y: super::Z) -> c::K { crate::d::l(other::c::M) }\n#[cfg(test)]\nmod tests { use crate::not; }",
    );
    let found = paths(&module("a/b"), &code, &sources);
    let expected = [
        "d/self", "d/E", "d/f/G", "d/f/I", "a/b/c/J", "a/Z", "a/b/c/K", "d/l",
    ];
    assert_eq!(
        found,
        expected.map(|path| (module(path), path == "a/b/c/J"))
    );
    let reexports = [(module("a/b/J"), module("a/b/c/J"))].into();
    assert_eq!(
        defined_in(&module("a/b/J"), &reexports, &sources),
        module("a/b/c")
    );
    assert_eq!(
        defined_in(&module("d/f/I"), &reexports, &sources),
        module("d")
    );
}
