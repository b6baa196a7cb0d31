//! Texts as parts of one program. A kernel of a text becomes a *unit*: a function that runs some groups of it, with
//! arguments from a table. A program has the units of several texts, and the kernel `tasks` that runs them.
//!
//! The names of a text are its own: what it declares gets a prefix, and the end of a unit takes back what it defines. A
//! text that this file does not understand makes a program that does not compile, never one that computes something else.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use crate::source::DIALECT;

/// Puts a group into its place. It stands in front of the units.
const PLACE: &str = include_str!("../kernels/place.c");

/// The kernel that runs tasks. It stands behind the units.
const TASKS: &str = include_str!("../kernels/tasks.c");

/// A kernel of a text, as a part of programs.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unit {
    /// The beginning of the names of the text. No two texts have the same.
    prefix: String,
    text: String,
}

/// The macros of the dialect.
static MACROS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| Names::of(DIALECT).defined);

/// The words of the dialect, which stay what they are.
static KNOWN: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let mut known = HashSet::new();
    tokens(DIALECT, &mut |token| match token {
        Token::Word(word) => {
            known.insert(word);
        }
        Token::Directive(line) => words(line, &mut |word| {
            known.insert(word);
        }),
        Token::Space(_) | Token::Other(_) => {}
    });
    known
});

/// The part of a source besides the dialect. `None` if it does not hold the dialect as it is here, or has groups of
/// more than one item.
pub(crate) fn own_text(source: &str) -> Option<String> {
    let at = source.find(DIALECT)?;
    let (before, after) = (&source[..at], &source[at + DIALECT.len()..]);
    let size = "#define OTR_GROUP_SIZE ";
    let sizes = before.lines().filter_map(|line| line.strip_prefix(size));
    if !sizes.map(str::trim).eq(["1"]) {
        return None;
    }
    let own = |line: &&str| !line.starts_with(size);
    let lines = before.lines().filter(own).flat_map(|line| [line, "\n"]);
    Some(lines.chain([after]).collect())
}

impl Unit {
    /// A kernel of what [`own_text`] gave. `None` if there is no such kernel, or its parameters are not understood.
    pub(crate) fn of(text: &str, kernel: &str) -> Option<Arc<Self>> {
        let hash = outrigger_tuner::hash(&[text, kernel]);
        let prefix = format!("otr_{}_", hash.get(..16).unwrap_or(&hash));
        let text = Names::of(text).unit(text, kernel, &prefix)?;
        Some(Arc::new(Self { prefix, text }))
    }
}

/// The source of a program.
pub(crate) fn program(units: &[Arc<Unit>]) -> String {
    let head = "#define OTR_GROUP_SIZE 1\n#define OTR_TASKS 1\n";
    let mut text = [head, DIALECT, PLACE].concat();
    let mut cases = String::new();
    for (number, unit) in units.iter().enumerate() {
        text.push_str(&unit.text);
        // Writing to a string does not fail.
        let _ = writeln!(
            cases,
            "    case {number}: {}run(place, begin, end, words); break;",
            unit.prefix
        );
    }
    let _ = write!(
        text,
        "\nOTR_FUNCTION void otr_run_unit(otr_place_t* place, i64 unit, i64 begin, i64 end, OTR_GLOBAL const i64* words) {{\n  \
         switch (unit) {{\n{cases}  }}\n}}\n{TASKS}"
    );
    text
}

/// A piece of a text. All of them, one behind the other, are the text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// A line that begins with `#`, with those that continue it.
    Directive(&'a str),
    /// White space or a comment.
    Space(&'a str),
    /// A number or a sign.
    Other(&'a str),
}

/// The words that a function of a text begins with.
const FUNCTIONS: [&str; 2] = ["OTR_FUNCTION", "OTR_FUSED"];

/// Calls a function with each token of a text.
fn tokens<'a>(text: &'a str, with: &mut dyn FnMut(Token<'a>)) {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let run = |from: usize, of: &dyn Fn(&u8) -> bool| {
        bytes[from..]
            .iter()
            .position(|byte| !of(byte))
            .map_or(bytes.len(), |count| from + count)
    };
    let (mut at, mut fresh) = (0, true);
    while at < bytes.len() {
        let rest = &text[at..];
        let (end, token): (usize, fn(&'a str) -> Token<'a>) = if fresh && bytes[at] == b'#' {
            (at + line_length(rest), Token::Directive)
        } else if rest.starts_with("/*") {
            (
                at + rest.find("*/").map_or(rest.len(), |end| end + 2),
                Token::Space,
            )
        } else if rest.starts_with("//") {
            (at + rest.find('\n').unwrap_or(rest.len()), Token::Space)
        } else if bytes[at].is_ascii_whitespace() {
            (run(at, &u8::is_ascii_whitespace), Token::Space)
        } else if bytes[at].is_ascii_digit() {
            // Letters that are glued to a number are a part of it.
            (
                run(at, &|byte| is_word(byte) || *byte == b'.'),
                Token::Other,
            )
        } else if is_word(&bytes[at]) {
            (run(at, &is_word), Token::Word)
        } else {
            (
                at + rest.chars().next().map_or(1, char::len_utf8),
                Token::Other,
            )
        };
        let piece = &text[at..end];
        fresh = piece.ends_with('\n') || piece.trim().is_empty() && (fresh || piece.contains('\n'));
        with(token(piece));
        at = end;
    }
}

/// The bytes of a line and of those that continue it, with the end of the last one.
fn line_length(text: &str) -> usize {
    let mut length = 0;
    for line in text.split_inclusive('\n') {
        length += line.len();
        if !line.trim_end().ends_with('\\') {
            break;
        }
    }
    length
}

/// Calls a function with each word of a directive.
fn words<'a>(line: &'a str, with: &mut dyn FnMut(&'a str)) {
    // Behind the sign nothing begins a line.
    tokens(line.trim_start_matches('#'), &mut |token| match token {
        Token::Word(word) => with(word),
        Token::Directive(_) | Token::Space(_) | Token::Other(_) => {}
    });
}

/// The names that a text declares and defines.
#[derive(Debug, Default)]
struct Names<'a> {
    /// Functions, kernels, types and constants.
    declared: HashSet<&'a str>,
    /// Macros.
    defined: HashSet<&'a str>,
}

/// The tokens outside of all braces since the last declaration has ended.
#[derive(Clone, Debug, Default)]
struct Statement<'a> {
    tokens: Vec<&'a str>,
    /// The number of open parentheses.
    depth: i32,
    /// The last word with a parenthesis behind it, outside of others.
    called: Option<&'a str>,
    /// The last word outside of parentheses, brackets and braces, in front of `=`.
    last: Option<&'a str>,
    over: bool,
}

/// The place in a text: the open braces, and the statement.
#[derive(Clone, Debug, Default)]
struct State<'a> {
    braces: i32,
    statement: Statement<'a>,
}

impl<'a> State<'a> {
    fn has(&self, word: &str) -> bool {
        self.statement.tokens.contains(&word)
    }

    /// Goes on to a token. `ended` is called with a statement that has ended with it.
    fn step(&mut self, token: Token<'a>, ended: &mut dyn FnMut(&Statement<'a>)) {
        let (text, is_word) = match token {
            Token::Word(word) => (word, true),
            Token::Other(sign) => (sign, false),
            Token::Space(_) | Token::Directive(_) => return,
        };
        match text {
            "{" => self.braces += 1,
            "}" => self.braces -= 1,
            _ => {}
        }
        let is_function = FUNCTIONS.iter().any(|word| self.has(word)) || self.has("OTR_KERNEL");
        let closes = self.braces == 0 && (text == ";" || text == "}" && is_function);
        let statement = &mut self.statement;
        if self.braces == 0 && text != "}" {
            match text {
                "(" => {
                    if statement.depth == 0 {
                        statement.called = statement.tokens.last().copied();
                    }
                    statement.depth += 1;
                }
                ")" => statement.depth -= 1,
                "=" | "[" => statement.over = true,
                _ if is_word && statement.depth == 0 && !statement.over => {
                    statement.last = Some(text)
                }
                _ => {}
            }
            statement.tokens.push(text);
        }
        // A macro that stands alone needs nothing behind it.
        let alone = self.braces == 0
            && text == ")"
            && statement.depth == 0
            && statement.tokens.get(1) == Some(&"(")
            && statement.tokens.first() != Some(&"OTR_KERNEL");
        if closes || alone {
            ended(statement);
            *statement = Statement::default();
        }
    }
}

/// Follows the conditions of a text: each branch begins where the first one did.
#[derive(Debug, Default)]
struct Branches<T>(Vec<T>);

impl<T: Clone> Branches<T> {
    fn step(&mut self, line: &str, state: &mut T) {
        let word = line.trim_start_matches('#').trim_start();
        if word.starts_with("if") {
            self.0.push(state.clone());
        } else if word.starts_with("el") {
            if let Some(first) = self.0.last() {
                state.clone_from(first);
            }
        } else if word.starts_with("endif") {
            self.0.pop();
        }
    }
}

impl<'a> Names<'a> {
    fn of(text: &'a str) -> Self {
        let (mut names, mut state, mut branches) =
            (Self::default(), State::default(), Branches::default());
        tokens(text, &mut |token| {
            if let Token::Directive(line) = token {
                branches.step(line, &mut state);
                names.define(line);
            }
            state.step(token, &mut |statement| names.declare(statement));
        });
        let Self { declared, defined } = &mut names;
        declared.retain(|name| !KNOWN.contains(name) && !defined.contains(name));
        names
    }

    fn define(&mut self, line: &'a str) {
        let mut name = 0;
        words(line, &mut |word| {
            name += 1;
            if name == 2
                && line
                    .trim_start_matches('#')
                    .trim_start()
                    .starts_with("define")
            {
                self.defined.insert(word);
            }
        });
    }

    fn declare(&mut self, statement: &Statement<'a>) {
        let tokens = &statement.tokens;
        let kernel = |at: usize| tokens.get(at + 2).copied();
        if let Some(at) = tokens.iter().position(|one| *one == "OTR_KERNEL") {
            self.declared.extend(kernel(at));
        } else if FUNCTIONS.iter().any(|word| tokens.contains(word)) {
            self.declared.extend(statement.called);
        } else if tokens.contains(&"typedef") || tokens.contains(&"OTR_CONSTANT") {
            self.declared.extend(statement.last);
        } else if tokens.get(1) == Some(&"(") {
            // A macro of the text that declares something: its name is among the arguments.
            let is_word = |one: &&str| one.starts_with(|first: char| first.is_ascii_alphabetic());
            self.declared
                .extend(tokens[2..].iter().copied().filter(is_word));
        }
        // The name of a struct besides its type is looked for.
        let tag = tokens.iter().position(|one| *one == "struct");
        let tag = tag.and_then(|at| tokens.get(at + 1)).copied();
        self.declared
            .extend(tag.filter(|one| one.starts_with(|first: char| first.is_ascii_alphabetic())));
    }

    /// A word as it stands in a unit.
    fn renamed(&self, word: &str, prefix: &str) -> Option<String> {
        // The beginning of a name, to which a macro joins the rest.
        let begins = || {
            word.ends_with('_')
                && !KNOWN.contains(word)
                && self.declared.iter().any(|name| name.starts_with(word))
        };
        (self.declared.contains(word) || begins()).then(|| format!("{prefix}{word}"))
    }

    /// The text as a unit, with a function that runs groups of a kernel behind that kernel.
    fn unit(&self, text: &str, kernel: &str, prefix: &str) -> Option<String> {
        // The end of the unit would take back what the texts behind it need.
        if !self.defined.is_disjoint(&MACROS) {
            return None;
        }
        let mut out = String::with_capacity(text.len() * 2);
        let put = |out: &mut String, word: &str| match self.renamed(word, prefix) {
            Some(renamed) => out.push_str(&renamed),
            None => out.push_str(word),
        };
        let mut renamed = String::new();
        tokens(text, &mut |token| match token {
            Token::Word(word) => put(&mut renamed, word),
            Token::Directive(line) => {
                renamed.push('#');
                tokens(line.trim_start_matches('#'), &mut |token| match token {
                    Token::Word(word) => put(&mut renamed, word),
                    Token::Space(other) | Token::Other(other) | Token::Directive(other) => {
                        renamed.push_str(other)
                    }
                });
            }
            Token::Space(other) | Token::Other(other) => renamed.push_str(other),
        });
        let kernel = self.renamed(kernel, prefix)?;
        let (mut state, mut branches) = (State::default(), Branches::default());
        let (mut header, mut parameters) = (Header::default(), None);
        let (mut found, mut understood) = (false, true);
        tokens(&renamed, &mut |token| {
            if let Token::Directive(line) = token {
                branches.step(line, &mut state);
            }
            header.step(token, state.braces);
            if let Some((name, list)) = header.take() {
                parameters = (name == kernel).then(|| Parameters::of(&list));
            }
            match token {
                Token::Word(piece)
                | Token::Directive(piece)
                | Token::Space(piece)
                | Token::Other(piece) => out.push_str(piece),
            }
            let mut ended = false;
            state.step(token, &mut |statement| {
                ended = statement.tokens.contains(&"OTR_KERNEL")
            });
            if ended && let Some(list) = parameters.take() {
                match list {
                    Some(list) => list.write(&mut out, &kernel, prefix),
                    None => understood = false,
                }
                found = true;
            }
        });
        if !out.ends_with('\n') {
            out.push('\n');
        }
        let mut defined: Vec<_> = self.defined.iter().collect();
        defined.sort_unstable();
        for name in defined {
            let _ = writeln!(out, "#undef {name}");
        }
        (found && understood).then_some(out)
    }
}

/// Reads the name and the list of parameters of a kernel.
#[derive(Debug, Default)]
struct Header<'a> {
    /// 0: before a kernel; 1: in front of its name; 2: behind the name; 3: in the list.
    part: u32,
    depth: i32,
    name: &'a str,
    list: Vec<Token<'a>>,
    done: Option<(&'a str, Vec<Token<'a>>)>,
}

impl<'a> Header<'a> {
    fn step(&mut self, token: Token<'a>, braces: i32) {
        match (self.part, token) {
            (0, Token::Word("OTR_KERNEL")) if braces == 0 => self.part = 1,
            (1, Token::Word(name)) => (self.part, self.name) = (2, name),
            (2, Token::Other("(")) => (self.part, self.depth) = (3, 0),
            (3, Token::Other(")")) if self.depth == 0 => {
                self.part = 0;
                self.done = Some((self.name, std::mem::take(&mut self.list)));
            }
            (3, token) => {
                match token {
                    Token::Other("(") => self.depth += 1,
                    Token::Other(")") => self.depth -= 1,
                    _ => {}
                }
                self.list.push(token);
            }
            _ => {}
        }
    }

    fn take(&mut self) -> Option<(&'a str, Vec<Token<'a>>)> {
        self.done.take()
    }
}

/// The parameters of a kernel, and the conditions between them.
#[derive(Debug, Default)]
struct Parameters(Vec<Parameter>);

#[derive(Debug)]
enum Parameter {
    /// A line of the preprocessor's.
    Line(String),
    /// A type, a name, and whether it is an address.
    Value(String, String, bool),
}

impl Parameters {
    /// `None` for a parameter that is no type with a name behind it.
    fn of(list: &[Token<'_>]) -> Option<Self> {
        let (mut all, mut part, mut depth) = (Self::default(), Vec::new(), 0);
        for token in list.iter().chain([&Token::Other(",")]) {
            match token {
                Token::Word("OTR_ITEM") => {}
                Token::Directive(line) => {
                    // A condition stands between parameters.
                    all.end(&mut part)?;
                    all.0
                        .push(Parameter::Line(format!("{}\n", line.trim_end())));
                }
                Token::Other(",") if depth == 0 => all.end(&mut part)?,
                Token::Space(_) => part.push(" "),
                Token::Word(piece) | Token::Other(piece) => {
                    depth += i32::from(*piece == "(") - i32::from(*piece == ")");
                    part.push(piece);
                }
            }
        }
        Some(all)
    }

    fn end(&mut self, part: &mut Vec<&str>) -> Option<()> {
        let pieces: Vec<_> = std::mem::take(part);
        let text = pieces.concat();
        let text = text.trim();
        if text.is_empty() {
            return Some(());
        }
        let at = text.rfind(|one: char| !(one.is_ascii_alphanumeric() || one == '_'))? + 1;
        let (type_, name) = (text[..at].trim(), &text[at..]);
        let is_plain = !text.contains(['[', '{']) && !type_.is_empty() && !name.is_empty();
        is_plain.then(|| {
            let is_address = type_.contains('*');
            self.0.push(Parameter::Value(
                type_.to_owned(),
                name.to_owned(),
                is_address,
            ));
        })
    }

    /// A function that runs groups of the kernel. Each argument begins at a word of its own.
    fn write(&self, out: &mut String, kernel: &str, prefix: &str) {
        let mut call = String::new();
        let _ = write!(
            out,
            "\nOTR_FUNCTION void {prefix}run(otr_place_t* otr_place, i64 otr_group, i64 otr_end, \
             OTR_GLOBAL const i64* otr_words) {{\n"
        );
        for parameter in &self.0 {
            let _ = match parameter {
                Parameter::Line(line) => {
                    call.push_str(line);
                    out.write_str(line)
                }
                Parameter::Value(type_, name, is_address) => {
                    // The comma stands in front, because a condition may leave out what is behind.
                    call.push_str(&format!("    , {name}\n"));
                    match is_address {
                        true => writeln!(out, "  {type_} {name} = ({type_})(size_t)*otr_words++;"),
                        false => writeln!(
                            out,
                            "  {type_} {name} = *(OTR_GLOBAL {type_}*)otr_words;\n  \
                             otr_words += (sizeof {name} + 7) / 8;"
                        ),
                    }
                }
            };
        }
        let _ = write!(
            out,
            "  (void)otr_words;\n  for (; otr_group < otr_end; otr_group++) {{\n    otr_put(otr_place, otr_group);\n    \
             {kernel}(otr_place\n{call}    );\n  }}\n}}\n"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outrigger_device::DType;
    use outrigger_ops::OperatorId;
    use outrigger_ops::catalog::samples::Sample;

    use super::{Unit, own_text};
    use crate::device::Device;
    use crate::entries::Calls;
    use crate::kernel::Below;
    use crate::operators;
    use crate::recording::Recorder;
    use crate::source::DIALECT;

    /// A device that compiles plain C, and records.
    fn device() -> Device {
        let driver = outrigger_dialect_driver::driver("devices=1,memory=64M").unwrap();
        let properties = driver.properties(0).unwrap();
        let raw = driver.as_raw();
        let calls = Calls::below(raw.api(), raw).unwrap();
        let below = Below::new(driver, Some(Recorder::new(calls))).unwrap();
        Device::new(&below, 0, &properties).unwrap()
    }

    /// The kernels of samples of all operators are parts of one program.
    #[test]
    fn all_texts_are_units_of_one_program() {
        let device = device();
        for name in operators::names(&device) {
            for dtype in [DType::F32, DType::I64] {
                let sample = OperatorId::find(name).and_then(|id| Sample::new(id, dtype));
                let make = operators::find(name);
                if let Some((sample, make)) = sample.zip(make) {
                    // Not every operator has every type.
                    sample.with(|call| drop(make(&device, name, call)));
                }
            }
        }
        let units = device.units_so_far();
        let missing: Vec<_> = units.iter().filter(|(_, unit)| unit.is_none()).collect();
        assert!(missing.is_empty(), "{missing:?} are no units");
        let mut units: Vec<_> = units.into_iter().filter_map(|(_, unit)| unit).collect();
        units.sort_unstable();
        units.dedup();
        assert!(units.len() > 60, "{} units", units.len());
        device.compile_program(&units).map(drop).unwrap();
    }

    const TWO: &str = "#define OTR_GROUP_SIZE 1\n#define STEP 2\n";
    const TEXT: &str = "
typedef struct { f32 pair[2]; } pair_t;
#define PAIR(name) OTR_JOIN2(pair_, name)
OTR_FUNCTION f32 pair_first(const pair_t* of) { return of->pair[0]; }
#if STEP == 1
OTR_KERNEL(add)(OTR_ITEM OTR_GLOBAL f32* to, const i64 count) { to[0] = (f32)count; }
#else
OTR_KERNEL(add)(OTR_ITEM OTR_GLOBAL f32* to,
#if STEP > 1
    const pair_t by, /* a comment, with a comma */
#endif
    f32 last) {
  to[OTR_GROUP_ID(0)] += PAIR(first)(&by) + last;
}
#endif
";

    #[test]
    fn names_are_a_texts_own() {
        let text = own_text(&[TWO, DIALECT, TEXT].concat()).unwrap();
        assert!(text.starts_with("#define STEP 2\n"), "{text}");
        let unit = Unit::of(&text, "add").unwrap();
        for name in ["pair_t", "pair_", "pair_first", "add", "run"] {
            let own = format!("{}{name}", unit.prefix);
            assert!(unit.text.contains(&own), "{own} in {}", unit.text);
        }
        assert!(
            unit.text.ends_with("#undef PAIR\n#undef STEP\n"),
            "{}",
            unit.text
        );
        assert_eq!(
            unit.text.matches("run(otr_place_t*").count(),
            2,
            "one for each branch"
        );
        assert!(unit.text.contains(", by\n#endif"), "{}", unit.text);
        let other = own_text(&[TWO, DIALECT, &TEXT.replace("+=", "-=")].concat()).unwrap();
        let other = Unit::of(&other, "add").unwrap();
        assert_ne!(unit.prefix, other.prefix);
        let units = [unit, other];
        device().compile_program(&units).map(drop).unwrap();
    }

    #[test]
    fn what_cannot_be_a_unit_is_none() {
        let source = |first: &str| [first, DIALECT, TEXT].concat();
        assert_eq!(
            own_text(&source("#define OTR_GROUP_SIZE 64\n")),
            None,
            "larger groups"
        );
        assert_eq!(own_text(&source("")), None, "an unknown size");
        assert_eq!(own_text(TEXT), None, "no dialect");
        let text = own_text(&source("#define OTR_GROUP_SIZE 1\n")).unwrap();
        assert_eq!(Unit::of(&text, "sub"), None, "no such kernel");
        let macro_ = ["#define OTR_JOIN2(a, b) a\n", &text].concat();
        assert_eq!(Unit::of(&macro_, "add"), None, "a macro of the dialect");
        let array = text.replace("f32 last", "f32 last[2]");
        assert_eq!(
            Unit::of(&array, "add"),
            None,
            "a parameter that is an array"
        );
    }

    /// A text that does not compile makes a program that does not.
    #[test]
    fn a_program_that_does_not_compile_is_none() {
        let broken = TEXT
            .replace("count; }", "count; missing; }")
            .replace("STEP == 1", "1");
        let text = own_text(&[TWO, DIALECT, &broken].concat()).unwrap();
        let unit: Arc<Unit> = Unit::of(&text, "add").unwrap();
        assert!(device().program(&[unit]).is_none());
    }
}
