package holdfast_test

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// configurations are the structs of docs/configuration.md: each is a section with a row for every
// field.
var configurations = []struct{ folder, name string }{
	{"endpoint", "Config"},
	{"recoverability", "Config"},
	{"transport/inmemory", "Transport"},
	{"resilience", "Policy"},
	{"resilience", "Retry"},
	{"schedule", "Config"},
	{"schedule", "Schedule"},
	{"transport/sqlite", "Transport"},
	{"transport/postgres", "Transport"},
	{"transport/sqlserver", "Transport"},
	{"transport/rabbitmq", "Transport"},
	{"transport/asb", "Transport"},
	{"transport/sqs", "Transport"},
	{"telemetry/otel", "Options"},
	{"servicecontrol", "Config"},
	{"servicecontrol", "Check"},
}

// The page's tables are made from the doc comments of the fields; "when to change it" is written by
// hand. UPDATE_DOCS=1 go test -run ConfigurationPage . writes them.
func TestTheConfigurationPageShowsTheDocComments(t *testing.T) {
	const name = "docs/configuration.md"
	text := page(t, name)
	want := text
	for _, c := range configurations {
		section := "## `" + path.Base(c.folder) + "." + c.name + "`\n"
		before, rest, ok := strings.Cut(want, section)
		if !ok {
			t.Errorf("%s has no section %q", name, strings.TrimSpace(section))
			continue
		}
		body, after, found := strings.Cut(rest, "\n## ")
		if found {
			after = "\n## " + after
		}
		want = before + section + withTable(body, fieldDocs(t, c.folder, c.name)) + after
	}
	if want == text {
		return
	}
	if os.Getenv("UPDATE_DOCS") == "" {
		t.Fatalf("%s differs from the doc comments: run UPDATE_DOCS=1 go test -run ConfigurationPage .", name)
	}
	if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

type fieldDoc struct{ name, doc string }

// fieldDocs returns the exported fields of a struct with their doc comments.
func fieldDocs(t *testing.T, folder, name string) (fields []fieldDoc) {
	t.Helper()
	for _, file := range codeOf(t, folder) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				fields = fieldsOf(s)
			}
			return false
		})
	}
	if len(fields) == 0 {
		t.Errorf("%s has no struct %s with fields", folder, name)
	}
	return fields
}

func fieldsOf(s *ast.StructType) (fields []fieldDoc) {
	doc := ""
	for _, f := range s.Fields.List {
		if f.Doc != nil { // fields without one share that of the field before
			doc = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
		for _, n := range f.Names {
			if n.IsExported() {
				fields = append(fields, fieldDoc{n.Name, doc})
			}
		}
	}
	return fields
}

var tableRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.* \\| ((?:[^|\\\\]|\\\\.)*) ?\\|\n")

// withTable returns a section with the table of the fields, and with what the rows of its table say
// about when to change them.
func withTable(section string, fields []fieldDoc) string {
	when := map[string]string{}
	for _, row := range tableRow.FindAllStringSubmatch(section, -1) {
		when[row[1]] = strings.TrimSpace(row[2])
	}
	var table strings.Builder
	table.WriteString("| field | meaning | when to change it |\n|---|---|---|\n")
	for _, f := range fields {
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", f.name, cell(f.doc), when[f.name])
	}
	whole := regexp.MustCompile(`(?m)^\| field \|.*\n(\|.*\n)*`).FindStringIndex(section)
	if whole == nil {
		return section + "\n" + table.String()
	}
	return section[:whole[0]] + table.String() + section[whole[1]:]
}

var docLink = regexp.MustCompile(`\[\*?([A-Za-z.]+)\]`)

// cell returns a doc comment as the cell of a table: links to names become code.
func cell(doc string) string {
	doc = docLink.ReplaceAllString(doc, "`$1`")
	return strings.ReplaceAll(doc, "|", `\|`)
}
