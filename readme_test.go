package holdfast_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The README has at most 900 words. A word is a run of characters without white space that has a
// letter or a digit. Text in code fences and in inline code does not count, nor do the targets of
// links and pictures.
func TestTheReadmeIsShort(t *testing.T) {
	if n := words(page(t, "README.md")); n > 900 {
		t.Errorf("README.md has %d words, want at most 900", n)
	}
	const text = "Two words, [a link](with/a target.md) | `no code` |\n```\nno fence\n```\n— 1 end\n"
	if n := words(text); n != 6 {
		t.Errorf("%d words are counted in %q, want 6", n, text)
	}
}

var (
	fence  = regexp.MustCompile("(?ms)^```.*?^```$")
	inline = regexp.MustCompile("`[^`]*`")
	target = regexp.MustCompile(`\]\([^)]*\)`)
)

func words(text string) (n int) {
	for _, not := range []*regexp.Regexp{fence, inline, target} {
		text = not.ReplaceAllString(text, " ")
	}
	for _, word := range strings.Fields(text) {
		if strings.ContainsFunc(word, func(r rune) bool {
			return unicode.IsLetter(r) || unicode.IsDigit(r)
		}) {
			n++
		}
	}
	return n
}

// The README begins with the name, one sentence, the badges, three sentences and the picture. Its
// sections have a fixed order.
func TestTheReadmeHasItsOrder(t *testing.T) {
	text := page(t, "README.md")
	head, _, _ := strings.Cut(text, "\n## ")
	parts := strings.Split(strings.TrimSpace(head), "\n\n")
	if len(parts) != 5 {
		t.Fatalf("README.md has %d paragraphs before its first section, want 5", len(parts))
	}
	for i, want := range []string{
		`^# Holdfast$`, `^Holdfast `, `^!\[.*badge-.*badge-`, `^Holdfast is `, `^!\[.*message\.svg\)$`,
	} {
		if !matches("(?s)"+want, parts[i]) {
			t.Errorf("paragraph %d of README.md is %q, want a match of %s", i+1, parts[i], want)
		}
	}
	for i, want := range map[int]int{1: 1, 3: 3} {
		if n := len(regexp.MustCompile(`\.(\s|$)`).FindAllString(parts[i], -1)); n != want {
			t.Errorf("paragraph %d of README.md has %d sentences, want %d", i+1, n, want)
		}
	}
	var got []string
	for _, section := range strings.Split(fence.ReplaceAllString(text, ""), "\n## ")[1:] {
		name, _, _ := strings.Cut(section, "\n")
		got = append(got, name)
	}
	want := []string{
		"Start", "Try it from a clone", "What you get", "When to use something else", "Transports",
		"What it creates at your broker", "Speed", "Status", "Documentation",
	}
	if !slices.Equal(got, want) {
		t.Errorf("README.md has the sections %q, want %q", got, want)
	}
}

// Tables and lists of the README have as many entries as a reader can look at.
func TestTheReadmesTablesHaveTheirShape(t *testing.T) {
	text := page(t, "README.md")
	for _, c := range []struct {
		section       string
		rows, columns int
		first, last   string // matches each row's first and last cell
	}{
		{"What you get", 12, 2, `\]\(docs/`, "^`[^`]+`$"},
		{"When to use something else", 6, 2, `^\[|plain client`, `\w`},
		{"Transports", 6, 4, "^\\[`…/transport/\\w+`\\]\\(docs/", `\w`},
	} {
		rows := tableRows(section(t, text, c.section))
		if len(rows) != c.rows {
			t.Errorf("%q has %d rows, want %d", c.section, len(rows), c.rows)
		}
		for _, row := range rows {
			if len(row) != c.columns {
				t.Errorf("%q has a row of %d columns, want %d: %q", c.section, len(row), c.columns, row)
			} else if !matches(c.first, row[0]) || !matches(c.last, row[c.columns-1]) {
				t.Errorf("%q has the row %q: want cells that match %s and %s", c.section, row, c.first, c.last)
			}
		}
	}
	for _, c := range []struct {
		section string
		items   int
		each    string
	}{
		{"What it creates at your broker", 4, `^\*\*[\w ]+\*\*: \d `},
		{"Speed", 3, "(?s)^\\*\\*\\d\\.\\d\\d\\*\\* .*`[^`]+`$"},
		{"Documentation", 6, `^\[[\w ]+\]\([^)]+\): `},
	} {
		got := strings.Split(section(t, text, c.section), "\n- ")[1:]
		if len(got) != c.items {
			t.Errorf("%q has %d items, want %d", c.section, len(got), c.items)
		}
		for _, item := range got {
			item, _, _ = strings.Cut(strings.TrimSpace(item), "\n\n")
			if !matches(c.each, item) {
				t.Errorf("%q has the item %q, want a match of %s", c.section, item, c.each)
			}
		}
	}
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

func section(t *testing.T, text, name string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n## "+name+"\n")
	if !found {
		t.Fatalf("README.md has no section %q", name)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

// tableRows returns the cells of each row of a table, without the two rows of its head.
func tableRows(section string) (rows [][]string) {
	for line := range strings.Lines(section) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "|") {
			var cells []string
			for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
				cells = append(cells, strings.TrimSpace(cell))
			}
			rows = append(rows, cells)
		}
	}
	return rows[min(2, len(rows)):]
}

// Each line of code in the README compiles in readme_lines_test.go, or is an example of the
// command.
func TestTheReadmesLinesOfCodeCompile(t *testing.T) {
	compiled := page(t, "readme_lines_test.go") + page(t, "cmd/holdfast/errors.go")
	text := page(t, "README.md")
	codes := regexp.MustCompile("`(Trans(?:port|actions): [^`]*)`").FindAllString(text, -1)
	if len(codes) != 2 {
		t.Errorf("README.md has the settings %q, want a transport and a mode", codes)
	}
	for i := range codes {
		codes[i] = strings.Trim(codes[i], "`")
	}
	for _, row := range tableRows(section(t, text, "What you get")) {
		codes = append(codes, strings.Trim(row[len(row)-1], "`"))
	}
	for _, code := range codes {
		if !strings.Contains(compiled, code) {
			t.Errorf("neither readme_lines_test.go nor cmd/holdfast/errors.go has %s of README.md", code)
		}
	}
}

// The README's program has at most 35 lines and is that of examples/quickstart, with the handler
// first. The program runs in a module of its own that replaces Holdfast by a clone, with the
// commands and the output of the README.
func TestTheReadmesProgramRuns(t *testing.T) {
	text := section(t, page(t, "README.md"), "Start")
	found := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindStringSubmatch(text)
	if found == nil {
		t.Fatal("README.md has no program")
	}
	program := found[1]
	if !strings.HasSuffix(page(t, "examples/quickstart/main.go"), "\n"+program) {
		t.Error("README.md shows another program than examples/quickstart/main.go")
	}
	if lines := strings.Count(program, "\n"); lines > 35 {
		t.Errorf("the program has %d lines, want at most 35", lines)
	}
	before, _, _ := strings.Cut(program, "endpoint.New")
	if !strings.Contains(before, "*endpoint.Session") {
		t.Error("the program's handler is not first")
	}
	fences := fence.FindAllString(text, -1)
	want := strings.TrimSuffix(strings.TrimPrefix(fences[len(fences)-1], "```\n"), "```")
	if strings.Count(want, "\n") != 3 {
		t.Errorf("the README shows the output %q, want three lines", want)
	}
	clone, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	inFolder := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		var log strings.Builder
		cmd.Stderr = &log
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, log.String())
		}
		return string(out)
	}
	for _, line := range []string{
		"go mod init example.com/shop", "go mod edit -replace " + module + "=../holdfast",
		"go mod tidy", "go run .",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("README.md does not have the line %s, which a new module needs", line)
		}
		args := strings.Fields(line)
		last := &args[len(args)-1]
		*last = strings.Replace(*last, "../holdfast", clone, 1)
		if out := inFolder(args[0], args[1:]...); line == "go run ." && out != want {
			t.Errorf("the program prints %q, want %q", out, want)
		}
	}
}
