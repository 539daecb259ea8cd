package holdfast_test

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mixedSections are the sections of docs/mixed-systems.md on transports, with the folders of the
// drivers.
var mixedSections = map[string][]string{
	"RabbitMQ": {"transport/rabbitmq"}, "PostgreSQL and SQL Server": {"transport/postgres", "transport/sqlserver"},
	"Amazon SQS": {"transport/sqs"}, "Azure Service Bus": {"transport/asb"},
}

// The page on mixed systems names settings and options of URLs: the drivers have them.
func TestThePageOnMixedSystemsNamesSettingsThatExist(t *testing.T) {
	rows := 0
	for _, section := range strings.Split(page(t, "docs/mixed-systems.md"), "\n## ") {
		heading, body, _ := strings.Cut(section, "\n")
		for _, row := range regexp.MustCompile("(?m)^\\| (`.*`) \\| (`.*`|none) \\|.*\\|.*\\|$").FindAllStringSubmatch(body, -1) {
			if mixedSections[heading] == nil {
				t.Errorf("no driver is known for the section %q", heading)
			}
			rows++
			for _, folder := range mixedSections[heading] {
				checkSettings(t, folder, strings.Split(row[1], ", "), strings.Split(row[2], ", "))
			}
		}
	}
	if rows < 15 {
		t.Errorf("%d settings found in docs/mixed-systems.md", rows)
	}
}

// checkSettings checks that a driver's Transport has fields, and that its ParseURL reads options.
func checkSettings(t *testing.T, folder string, fields, options []string) {
	t.Helper()
	for _, name := range fields {
		of, name := "Transport", strings.Trim(name, "`")
		if nested, field, ok := strings.Cut(name, "."); ok {
			of, name = nested, field
		}
		known := slices.ContainsFunc(fieldDocs(t, folder, of), func(f fieldDoc) bool { return f.name == name })
		if !known {
			t.Errorf("docs/mixed-systems.md names %s.%s, which %s does not have", of, name, folder)
		}
	}
	doc := urlDoc(t, folder)
	for _, option := range options {
		option = strings.Trim(option, "`")
		if option != "none" && !regexp.MustCompile(`\b`+option+`\b`).MatchString(doc) {
			t.Errorf("docs/mixed-systems.md names the option %s, which ParseURL of %s does not describe", option, folder)
		}
	}
}

// urlDoc returns the doc comment of a driver's ParseURL.
func urlDoc(t *testing.T, folder string) string {
	t.Helper()
	for _, file := range codeOf(t, folder) {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "ParseURL" {
				return f.Doc.Text()
			}
		}
	}
	t.Fatalf("%s has no ParseURL", folder)
	return ""
}
