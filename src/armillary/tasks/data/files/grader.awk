# Compares the answer on standard input with EXPECTED_ANSWER and prints 1 or 0.
# Tiers: equal text (case and outer white space aside), then equal numbers within 0.001,
# absolute or relative. A missing or empty answer is 0.

function clean(text) {
    gsub(/^[ \t\r\n]+|[ \t\r\n]+$/, "", text)
    return tolower(text)
}

function is_number(text) {
    return text ~ /^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$/
}

function distance(a, b) {
    return a > b ? a - b : b - a
}

{ answer = answer $0 "\n" }

END {
    expected = clean(ENVIRON["EXPECTED_ANSWER"])
    answer = clean(answer)
    good = answer != "" && answer == expected
    if (!good && is_number(answer) && is_number(expected)) {
        scale = distance(expected + 0, 0)
        good = distance(answer + 0, expected + 0) <= 0.001 * (scale > 1 ? scale : 1)
    }
    print good ? 1 : 0
}
