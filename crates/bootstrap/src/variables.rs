//! `${NAME}` in configuration files: one variable of the environment, so that many machines can have one file.

/// What is wrong with a use of a variable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misuse {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub message: String,
}

/// The text with `${name}` replaced by the variable's value. Lines that are comments stay as they are.
///
/// The value is a name as hosts have it, so that it cannot change what the file means otherwise.
///
/// # Errors
/// The variable is not set or is no name, or the file has another one.
pub(crate) fn expand(text: &str, name: &str, value: Option<&str>) -> Result<String, Misuse> {
    let mut expanded = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let expanded_line = match line.trim_start().starts_with('#') {
            true => Ok(line.to_owned()),
            false => expand_line(line, name, value),
        };
        expanded += &expanded_line.map_err(|(column, message)| Misuse {
            line: index + 1,
            column,
            message,
        })?;
    }
    Ok(expanded)
}

/// Errors are told with their column.
fn expand_line(line: &str, name: &str, value: Option<&str>) -> Result<String, (usize, String)> {
    let mut expanded = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("${") {
        let column = line.len() - rest.len() + before.len();
        let at = |message| (line[..column].chars().count() + 1, message);
        let Some((written, behind)) = after.split_once('}').filter(|(it, _)| *it == name) else {
            return Err(at(format!("unknown variable: only `${{{name}}}` can be written here")));
        };
        let value = value.ok_or_else(|| {
            at(format!(
                "`{written}` is not set in the environment: set it to the name of this node"
            ))
        })?;
        if !is_name(value) {
            let message =
                format!("`{written}` is {value:?}: use 1 to 253 of a-z, 0-9, `.` and `-`");
            return Err(at(message));
        }
        expanded += before;
        expanded += value;
        rest = behind;
    }
    Ok(expanded + rest)
}

fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.bytes().all(|byte| is_inner(byte) || matches!(byte, b'.' | b'-'))
        && text.bytes().next().is_some_and(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, value: Option<&str>) -> Result<String, Misuse> {
        expand(text, "NODE_NAME", value)
    }

    #[test]
    fn variable_is_replaced_wherever_it_is() {
        let text =
            "# of ${OTHER}\nname = \"dpu-${NODE_NAME}\"\npath = '/a/${NODE_NAME}/${NODE_NAME}'";
        let expected = "# of ${OTHER}\nname = \"dpu-n1.eu\"\npath = '/a/n1.eu/n1.eu'";
        assert_eq!(expanded(text, Some("n1.eu")).unwrap(), expected);
        assert_eq!(expanded("a = 1\n", None).unwrap(), "a = 1\n");
    }

    #[test]
    fn misuse_of_a_variable_is_told_with_its_place() {
        for (text, value, told) in [
            ("a = 1\nb = 'ü${NODE_NAME}'", None, "`NODE_NAME` is not set"),
            ("a = 1\nb = 'ü${NODENAME}'", Some("n"), "only `${NODE_NAME}`"),
            ("a = 1\nb = 'ü${NODE_NAME'", Some("n"), "only `${NODE_NAME}`"),
            ("a = 1\nb = 'ü${NODE_NAME}'", Some("n'\nc = 1"), "`NODE_NAME` is \"n'"),
            ("a = 1\nb = 'ü${NODE_NAME}'", Some("../n"), "`NODE_NAME` is \"../n"),
        ] {
            let misuse = expanded(text, value).unwrap_err();
            assert_eq!((misuse.line, misuse.column), (2, 7), "{text}");
            assert!(misuse.message.contains(told), "{misuse:?}");
        }
    }
}
