package baddays_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// A day is one bad day of a broker.
type day struct {
	// name is the first column of the broker's table in docs/bad-days.md.
	name string
	// long says that the day runs at full size only.
	long bool
	run  func(t *testing.T) outcome
}

// An outcome is what a day reports. Tests assert it themselves; the report is for people.
type outcome struct {
	message    string        // what happened to the bad message
	neighbours string        // what happened to the messages and endpoints beside it
	normal     time.Duration // from the end of the fault until the endpoint worked normally; 0: it never did otherwise
}

// faults reports whether the days run at full size, as they do in make test-faults.
func faults() bool { return os.Getenv("HOLDFAST_FAULTS") != "short" }

// size returns full in make test-faults, and short in its short form.
func size(short, full int) int {
	if faults() {
		return full
	}
	return short
}

// runDays runs the days of a broker and logs their outcomes as a table. The short form runs the
// days of several brokers at once; docs/bad-days.md has the times of the full form.
func runDays(t *testing.T, broker string, days []day) {
	t.Helper()
	if !brokertest.Fault(t) {
		t.Parallel()
	}
	var table strings.Builder
	for _, d := range days {
		if d.long && !faults() {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			o := d.run(t)
			fmt.Fprintf(&table, "%s | %s | %s | %v\n", d.name, o.message, o.neighbours, o.normal.Round(time.Millisecond))
		})
	}
	t.Logf("%s\nbad day | its message | the neighbours | until normal\n%s", broker, table.String())
}

// tables has the days of each broker, under the broker's heading in docs/bad-days.md.
var tables = map[string][]day{
	"PostgreSQL":        postgresDays,
	"RabbitMQ":          rabbitMQDays,
	"Azure Service Bus": serviceBusDays,
	"Amazon SQS":        sqsDays,
	"Every transport":   everywhereDays,
}

// TestTheDocumentationListsEveryDay compares docs/bad-days.md with the tables.
func TestTheDocumentationListsEveryDay(t *testing.T) {
	text, err := os.ReadFile("../../docs/bad-days.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	var broker string
	row := regexp.MustCompile(`^\| ([^|]+) \|`)
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			broker = strings.TrimSpace(heading)
		}
		if m := row.FindStringSubmatch(line); m != nil && tables[broker] != nil && m[1] != "Bad day" && !strings.HasPrefix(m[1], "--") {
			documented[broker] = append(documented[broker], strings.TrimSpace(m[1]))
		}
	}
	for _, tr := range troubles() {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(tr.name) + ` \|[^|]*` + regexp.QuoteMeta(tr.broker))
		if !row.Match(text) {
			t.Errorf("docs/bad-days.md does not list %q of %s under \"What Health says\"", tr.name, tr.broker)
		}
	}
	for broker, days := range tables {
		for _, d := range days {
			if !slices.Contains(documented[broker], d.name) {
				t.Errorf("docs/bad-days.md does not list %q under %q", d.name, broker)
			}
		}
		for _, name := range documented[broker] {
			if !slices.ContainsFunc(days, func(d day) bool { return d.name == name }) {
				t.Errorf("docs/bad-days.md lists %q under %q, which no test runs", name, broker)
			}
		}
	}
}
