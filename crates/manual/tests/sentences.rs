//! Tests compare codes and named values, not sentences, so that a sentence can be reworded without a change of any
//! test. This test finds the string literals of sentences that tests compare with what a program reports.
//!
//! A sentence is at least three words in a row, without articles and such, and at least twelve letters long. A literal is
//! compared if it is an operand of an assertion or of `==`, or an argument of `contains` and the like; directly, through
//! a `let`, a `const` or a table of a `for` loop, or as an argument of a test's own helper that compares it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Files and folders whose tests are about texts: what a program prints as a whole, or another program's language.
const TEXTS: [&str; 6] = [
    "crates/manual/tests/sentences.rs",
    "crates/netlink/tests/netns/nftables.rs",
    "dpuctl/src/describe/",
    "dpuctl/src/status.rs",
    "tests/src/openmetrics.rs",
    "tests/tests/e2e/scripts.rs",
];

/// How many sentences the tests of a crate may compare. A limit may only be lowered.
const LIMITS: [(&str, usize); 3] =
    [("crates/ipam/", 1), ("crates/saga/", 1), ("crates/vf-alloc/", 3)];

/// What the kernel, OpenSSL, X.509 and product names say. None of it is ours to reword.
const OF_OTHERS: [&str; 23] = [
    "Cannot delete node",
    "Device or resource busy",
    "Flag is not supported",
    "Gigabit Network Connection",
    "Mellanox Technologies",
    "Network is down",
    "Nexthop has invalid gateway",
    "No space left on device",
    "No such device",
    "Node has children",
    "Not implemented offload action",
    "Open vSwitch",
    "Port doesn't support function attributes",
    "SSL alert number",
    "TX rate value exceed link maximum speed",
    "TX rate value not in link speed units",
    "Unknown device type",
    "alert protocol version",
    "does not match existing one",
    "exceed link maximum speed",
    "extended key usage",
    "mtu greater than device maximum",
    "mtu less than device minimum",
];

/// Words that make no sentence.
const SMALL: [&str; 15] =
    ["a", "an", "and", "as", "at", "by", "for", "in", "no", "not", "of", "on", "or", "the", "to"];

const WORDS: usize = 3;
const LETTERS: usize = 12;

/// Assertions, with the number of arguments that are operands; the rest is the message.
const ASSERTIONS: [(&str, usize); 6] = [
    ("assert", 1),
    ("assert_eq", 2),
    ("assert_ne", 2),
    ("matches", usize::MAX),
    ("prop_assert", 1),
    ("prop_assert_eq", 2),
];

/// Methods whose argument is compared.
const METHODS: [&str; 8] = [
    "contains",
    "ends_with",
    "find",
    "matches",
    "split_once",
    "starts_with",
    "strip_prefix",
    "strip_suffix",
];

/// Helpers of the end-to-end tests that compare their arguments.
const SHARED_HELPERS: [&str; 2] = ["fails", "is_refused"];

/// Calls and macros that pass a text on.
const WRAPPERS: [&str; 8] = ["Err", "Ok", "Some", "concat", "format", "from", "new", "vec"];

/// Whether a literal's text, escapes included, holds a sentence of ours.
fn is_sentence(literal: &str) -> bool {
    let mut text = without_placeholders(literal).replace("\\n", "\n").replace("\\\"", "\"");
    for of_others in OF_OTHERS {
        text = text.replace(of_others, "\n");
    }
    let mut run = Vec::new();
    for word in text.split(' ') {
        let end = word.trim_end_matches([',', ':', ';', '.']);
        if end.is_empty() || !end.chars().all(|c| c.is_alphabetic() || c == '\'') {
            run.clear();
            continue;
        }
        run.push(end);
        let letters = run.iter().flat_map(|word| word.chars()).filter(|c| c.is_alphabetic());
        let counted = run.iter().filter(|word| !SMALL.contains(&&*word.to_lowercase()));
        if counted.count() >= WORDS && letters.count() >= LETTERS {
            return true;
        }
        if word.ends_with([':', ';', '.']) {
            run.clear();
        }
    }
    false
}

/// The text with each `{...}` of a format replaced by a digit.
fn without_placeholders(text: &str) -> String {
    let mut parts = text.split('{');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push('0');
        plain.push_str(part.split_once('}').map_or(part, |(_, rest)| rest));
    }
    plain
}

/// The names in the placeholders of a format.
fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    let inner = text.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let names = inner.map(|(name, _)| name.split(':').next().unwrap_or_default());
    names.filter(|name| !name.is_empty())
}

/// The text of a string literal, without quotes and with its escapes.
fn string(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    let source = literal.to_string();
    let inner = source.trim_start_matches(['b', 'c', 'r', '#']).strip_prefix('"')?;
    Some(inner.trim_end_matches('#').strip_suffix('"')?.to_owned())
}

fn word(token: Option<&TokenTree>) -> String {
    match token {
        Some(TokenTree::Ident(ident)) => ident.to_string(),
        _ => String::new(),
    }
}

fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn group(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<Vec<TokenTree>> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(inside(group)),
        _ => None,
    }
}

fn inside(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

fn arguments(tokens: &[TokenTree]) -> Vec<&[TokenTree]> {
    let split = tokens.split(|token| is_punct(Some(token), ','));
    split.filter(|argument| !argument.is_empty()).collect()
}

/// Runs `visit` for the tokens of each group, the outermost first.
fn for_each_level(tokens: &[TokenTree], visit: &mut impl FnMut(&[TokenTree])) {
    visit(tokens);
    for token in tokens {
        if let TokenTree::Group(group) = token {
            for_each_level(&inside(group), visit);
        }
    }
}

/// What the code of a function compares.
#[derive(Default)]
struct Compared {
    /// By line.
    literals: BTreeSet<(usize, String)>,
    names: BTreeSet<String>,
}

impl Compared {
    /// By these tokens, which stand where something is compared.
    fn add(&mut self, tokens: &[TokenTree], helpers: &BTreeSet<String>) {
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Literal(_) => self.add_literal(token),
                TokenTree::Ident(ident) => {
                    self.names.insert(ident.to_string());
                }
                TokenTree::Group(group) if group.delimiter() != Delimiter::Brace => {
                    let before = index.checked_sub(1).map(|it| &tokens[it]);
                    let is_macro = is_punct(before, '!');
                    let two_before = index.checked_sub(2).map(|it| &tokens[it]);
                    let name = word(if is_macro { two_before } else { before });
                    let passes_on = WRAPPERS.contains(&&*name)
                        || METHODS.contains(&&*name)
                        || helpers.contains(&name);
                    if name.is_empty() || passes_on {
                        self.add(&inside(group), helpers);
                    }
                }
                _ => {}
            }
        }
    }

    fn add_literal(&mut self, token: &TokenTree) {
        if let Some(text) = string(token) {
            self.names.extend(placeholders(&text).map(ToOwned::to_owned));
            self.literals.insert((token.span().start().line, text));
        }
    }

    /// By the assertions, comparisons and calls in the code.
    fn add_code(&mut self, code: &[TokenTree], helpers: &BTreeSet<String>) {
        for_each_level(code, &mut |tokens| {
            for (index, token) in tokens.iter().enumerate() {
                let before = index.checked_sub(1).map(|it| &tokens[it]);
                let name = word(Some(token));
                let is_call = METHODS.contains(&&*name) && is_punct(before, '.')
                    || helpers.contains(&name) && word(before) != "fn";
                let assertion = ASSERTIONS.iter().find(|(assertion, _)| *assertion == name);
                if let Some((_, operands)) =
                    assertion.filter(|_| is_punct(tokens.get(index + 1), '!'))
                {
                    if let Some(inner) = group(tokens.get(index + 2), Delimiter::Parenthesis) {
                        for argument in arguments(&inner).into_iter().take(*operands) {
                            self.add(argument, helpers);
                        }
                    }
                } else if is_call {
                    if let Some(inner) = group(tokens.get(index + 1), Delimiter::Parenthesis) {
                        self.add(&inner, helpers);
                    }
                } else if is_punct(Some(token), '=')
                    && (is_punct(before, '=') || is_punct(before, '!'))
                {
                    let skipped = usize::from(is_punct(tokens.get(index + 1), '&'));
                    let operand = tokens.get(index + 1 + skipped..).unwrap_or_default();
                    let end = operand.iter().position(|token| matches!(token, TokenTree::Punct(_)));
                    self.add(&operand[..end.unwrap_or(operand.len())], helpers);
                }
            }
        });
    }

    /// By the variables that are compared: what `let`, `const` and the tables of loops give them.
    fn follow_names(&mut self, code: &[TokenTree], helpers: &BTreeSet<String>) {
        let mut known = 0;
        while known != self.names.len() {
            known = self.names.len();
            for_each_level(code, &mut |tokens| {
                for index in 0..tokens.len() {
                    match &*word(tokens.get(index)) {
                        "let" | "const" => self.follow_binding(&tokens[index + 1..], helpers),
                        "for" => self.follow_loop(&tokens[index + 1..], helpers),
                        _ => {}
                    }
                }
            });
        }
    }

    /// `NAME = TEXT;`, where the text is a literal, or made by a macro of literals.
    fn follow_binding(&mut self, tokens: &[TokenTree], helpers: &BTreeSet<String>) {
        let end = tokens.iter().position(|token| is_punct(Some(token), ';'));
        let binding = &tokens[..end.unwrap_or(tokens.len())];
        let Some(equals) = binding.iter().position(|token| is_punct(Some(token), '=')) else {
            return;
        };
        let (name, value) = (word(binding.first()), &binding[equals + 1..]);
        let is_text = value.first().is_some_and(|first| match first {
            TokenTree::Literal(_) => true,
            TokenTree::Punct(sign) => sign.as_char() == '&' && word(value.get(1)).is_empty(),
            TokenTree::Group(group) => group.delimiter() == Delimiter::Bracket,
            TokenTree::Ident(ident) => WRAPPERS.contains(&&*ident.to_string()),
        });
        if self.names.contains(&name) && is_text {
            self.add(value, helpers);
        }
    }

    /// `PATTERN in [...] {...}`: of tuples, the elements whose names are compared.
    fn follow_loop(&mut self, tokens: &[TokenTree], helpers: &BTreeSet<String>) {
        let is_body = |token: &TokenTree| group(Some(token), Delimiter::Brace).is_some();
        let tokens = tokens.split(is_body).next().unwrap_or_default();
        let Some(within) = tokens.iter().position(|token| word(Some(token)) == "in") else {
            return;
        };
        let table = tokens[within..].iter().find_map(|it| group(Some(it), Delimiter::Bracket));
        let pattern = group(tokens.first(), Delimiter::Parenthesis);
        let Some(table) = table else { return };
        let is_compared = |part: &[TokenTree]| {
            let mut found = false;
            for_each_level(part, &mut |tokens| {
                found |= tokens.iter().any(|token| self.names.contains(&word(Some(token))));
            });
            found
        };
        let Some(pattern) = pattern else {
            if is_compared(&tokens[..within]) {
                self.add(&table, helpers);
            }
            return;
        };
        let parts: Vec<_> = arguments(&pattern).into_iter().map(is_compared).collect();
        for row in arguments(&table) {
            let Some(row) = group(row.first(), Delimiter::Parenthesis) else { continue };
            for (element, _) in arguments(&row).into_iter().zip(&parts).filter(|(_, it)| **it) {
                self.add(element, helpers);
            }
        }
    }
}

/// A function: its name, its parameters of text and its body.
struct Function {
    name: String,
    texts: BTreeSet<String>,
    body: Vec<TokenTree>,
}

fn functions(code: &[TokenTree]) -> Vec<Function> {
    let mut found = Vec::new();
    for_each_level(code, &mut |tokens| {
        for index in 0..tokens.len() {
            if word(tokens.get(index)) != "fn" {
                continue;
            }
            let rest = &tokens[index + 1..];
            let parameters = rest.iter().find_map(|it| group(Some(it), Delimiter::Parenthesis));
            let body = rest.iter().take_while(|it| !is_punct(Some(it), ';'));
            let body = body.filter_map(|it| group(Some(it), Delimiter::Brace)).next();
            if let (Some(parameters), Some(body)) = (parameters, body) {
                let texts = arguments(&parameters).into_iter().filter(|it| is_text(it));
                let texts = texts.map(|it| word(it.first())).collect();
                found.push(Function { name: word(rest.first()), texts, body });
            }
        }
    });
    found
}

fn is_text(parameter: &[TokenTree]) -> bool {
    let mut found = false;
    for_each_level(parameter, &mut |tokens| {
        found |= tokens.iter().any(|token| word(Some(token)) == "str");
    });
    found
}

/// The lines and texts of the sentences that this code of tests compares.
fn sentences(code: &[TokenTree]) -> BTreeSet<(usize, String)> {
    let functions = functions(code);
    let mut helpers: BTreeSet<_> = SHARED_HELPERS.map(ToOwned::to_owned).into();
    loop {
        let known = helpers.len();
        for function in &functions {
            let mut compared = Compared::default();
            compared.add_code(&function.body, &helpers);
            if !function.texts.is_disjoint(&compared.names) {
                helpers.insert(function.name.clone());
            }
        }
        if helpers.len() == known {
            break;
        }
    }
    let mut found = Compared::default();
    for function in &functions {
        let mut compared = Compared::default();
        compared.add_code(&function.body, &helpers);
        compared.follow_names(&function.body, &helpers);
        found.literals.append(&mut compared.literals);
        found.names.append(&mut compared.names);
    }
    for_each_level(code, &mut |tokens| {
        for index in 0..tokens.len() {
            // A list is a list of inputs.
            let is_list = group(tokens.get(index + 3), Delimiter::Bracket).is_some();
            if word(tokens.get(index)) == "const" && !is_list {
                found.follow_binding(&tokens[index + 1..], &helpers);
            }
        }
    });
    found.literals.into_iter().filter(|(_, text)| is_sentence(text)).collect()
}

/// The code of tests in a source: all of it, or the modules that are built for tests only.
fn test_code(path: &str, source: &str) -> Vec<TokenTree> {
    let tokens: Vec<_> = source.parse::<TokenStream>().unwrap().into_iter().collect();
    let is_test =
        path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs");
    if is_test {
        return tokens;
    }
    let mut found = Vec::new();
    for_each_level(&tokens, &mut |tokens| {
        for (index, token) in tokens.iter().enumerate() {
            let attribute = group(Some(token), Delimiter::Bracket).unwrap_or_default();
            let text = TokenStream::from_iter(attribute).to_string().replace(' ', "");
            if text == "cfg(test)" {
                let rest = tokens[index..].iter().take_while(|it| !is_punct(Some(it), ';'));
                found.extend(
                    rest.filter_map(|it| group(Some(it), Delimiter::Brace))
                        .next()
                        .into_iter()
                        .flatten(),
                );
            }
        }
    });
    found
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources_below(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn tests_compare_no_sentences() {
    let root = repository().canonicalize().unwrap();
    let mut sources = Vec::new();
    sources_below(&root, &mut sources);
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for source in sources {
        let path = source.strip_prefix(&root).unwrap().to_str().unwrap();
        if TEXTS.iter().any(|texts| path.starts_with(texts)) {
            continue;
        }
        let limit = LIMITS.iter().find(|(begin, _)| path.starts_with(begin));
        let code = test_code(path, &fs::read_to_string(&source).unwrap());
        let places =
            sentences(&code).into_iter().map(|(line, text)| format!("{path}:{line}: {text}"));
        found.entry(limit).or_default().extend(places);
    }
    for (limit, places) in found {
        let most = limit.map_or(0, |(_, most)| *most);
        let list = places.join("\n");
        assert!(
            places.len() <= most,
            "compare the code and the named values, not the sentence ({} of at most {most}):\n{list}",
            places.len()
        );
        assert_eq!(places.len(), most, "lower the limit of {limit:?}");
    }
}

fn sentences_in(source: &str) -> Vec<String> {
    let found = sentences(&test_code("tests/it.rs", source));
    found.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn each_way_to_compare_a_sentence_is_found() {
    for body in [
        r#"assert_eq!(told, "the pool has no free VF");"#,
        r#"assert!(told.contains("the pool has no free VF"), "{told}");"#,
        r#"assert!(matches!(told, Some("the pool has no free VF")));"#,
        r#"assert_eq!(told, Some(format!("the pool has no free VF")));"#,
        r#"let why = "the pool has no free VF"; assert_eq!(told, format!("error: {why}"));"#,
        r#"const WHY: &str = "the pool has no free VF"; assert_eq!(told, WHY);"#,
        r#"for (one, why) in [("in", "the pool has no free VF")] { assert!(told(one).ends_with(why)); }"#,
        r#"for why in ["the pool has no free VF"] { assert!(told.contains(why)); }"#,
        r#"wait(|| (problem == "the pool has no free VF").then_some(()));"#,
        r#"answer.fails(7, &["the pool has no free VF"]);"#,
        r#"refused("input", "the pool has no free VF");"#,
    ] {
        let helper = "fn refused(input: &str, why: &str) { assert!(told(input).contains(why)); }";
        let source = format!("{helper} fn it() {{ {body} }}");
        assert_eq!(sentences_in(&source), ["the pool has no free VF"], "{body}");
    }
}

#[test]
fn codes_values_messages_and_inputs_are_no_sentences() {
    for body in [
        r#"assert!(told.contains("VFS_EXHAUSTED: "), "the pool has still a free VF");"#,
        r#"assert_eq!(told, "10.1.2.0/24 of network \"b\" overlaps 10.1.0.0/16", "{told}");"#,
        r#"assert_eq!(run("delete the network of that name"), 1);"#,
        r#"for (line, code) in [("delete the network of that name", 1)] { assert_eq!(run(line), code); }"#,
        r#"assert!(told.contains("TX rate value exceed link maximum speed"));"#,
        r#"panic!("the pool has no free VF");"#,
    ] {
        assert_eq!(sentences_in(&format!("fn it() {{ {body} }}")), [""; 0], "{body}");
    }
}
