package holdfast_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/holdfast-go/holdfast"

// A rule says what the packages of a path may import beside the standard library. Paths
// are relative to the module; one that ends in "/*" stands for all below it. Tests may
// import anything.
type rule struct {
	of      string
	ours    []string // our packages
	modules []string // third-party modules, or below: vendors' SDKs, each in its driver only
	free    bool     // may import anything, and be imported by its own program only
	tests   bool     // may be imported by tests only
}

// The first rule that fits a package is its rule. No rule is a failure: a new package
// gets its line here.
var rules = []rule{
	{of: "."},
	{of: "header"},
	{of: "serialization", ours: []string{"header", "internal/jsonloss", "internal/strictjson"}},
	{of: "serialization/*", ours: []string{"serialization"}},
	{of: "resilience"},

	{of: "transport", ours: []string{"header"}},
	{of: "recoverability", ours: []string{"header", "internal/errtree", "resilience"}},
	{of: "internal/copies", ours: []string{"header", "internal/envelope", "internal/errtree", "internal/fault", "transport"}},
	{of: "internal/cron"},
	{of: "internal/errtree"},
	{of: "internal/fault", ours: []string{"header", "internal/errtree", "internal/strictjson", "recoverability"}},
	{of: "internal/brokertest", free: true, tests: true},
	{of: "internal/histories", tests: true},
	{of: "internal/harness", ours: []string{"endpoint", "transport", "transport/inmemory"}, tests: true},
	{of: "internal/brokertest/*", free: true, tests: true},
	{of: "internal/tablequeue/storetest", ours: []string{"internal/*", "transport"}, tests: true},
	{of: "internal/stateful", ours: []string{"header", "internal/backoff", "internal/timer", "pipeline", "transport"}},
	{of: "internal/*", ours: []string{"header", "transport", "internal/*"}},
	{of: "delayeddelivery", ours: []string{"header", "transport", "internal/*"}},
	{of: "pipeline", ours: []string{"header", "recoverability", "transport"}},
	{of: "endpoint", ours: []string{
		"delayeddelivery", "endpoint/internal/*", "header", "internal/*", "pipeline", "recoverability",
		"resilience", "serialization", "transport",
	}},

	{of: "endpoint/acceptance", tests: true},
	{of: "endpoint/internal/destination"},
	{of: "endpoint/internal/held", ours: []string{"transport"}},
	{of: "endpoint/internal/panics", ours: []string{"internal/callback", "recoverability"}},
	{of: "endpoint/internal/overdue", ours: []string{"endpoint/internal/panics", "internal/goroutines", "internal/pump"}},
	{of: "endpoint/internal/work", ours: []string{"internal/errtree", "recoverability", "transport"}},
	{of: "endpoint/internal/settle", ours: []string{
		"endpoint/internal/failurelog", "header", "internal/backoff", "internal/copies", "internal/errtree", "internal/fault",
		"internal/pump", "recoverability", "transport",
	}},
	{of: "endpoint/internal/notify", ours: []string{
		"endpoint/internal/failurelog", "endpoint/internal/overdue", "endpoint/internal/panics", "internal/goroutines", "recoverability",
	}},
	{of: "endpoint/internal/inbox", ours: []string{
		"endpoint/internal/panics", "endpoint/internal/settle", "endpoint/internal/work", "header", "internal/handledid",
		"internal/pump", "recoverability", "transport",
	}},
	{of: "endpoint/internal/throttle", ours: []string{
		"endpoint/internal/failurelog", "endpoint/internal/notify", "endpoint/internal/settle", "header", "internal/fault",
		"recoverability",
	}},
	{of: "endpoint/internal/outage", ours: []string{
		"endpoint/internal/settle", "endpoint/internal/work", "internal/backoff", "internal/errtree", "internal/stateful", "transport",
	}},
	{of: "endpoint/internal/names", ours: []string{"recoverability", "transport"}},
	{of: "endpoint/internal/audit", ours: []string{
		"endpoint/internal/names", "endpoint/internal/notify", "endpoint/internal/settle", "header", "internal/copies",
		"internal/errtree", "internal/fault", "internal/uuid", "recoverability", "transport",
	}},
	{of: "endpoint/internal/outbox", ours: []string{
		"endpoint/internal/audit", "endpoint/internal/destination", "endpoint/internal/notify", "endpoint/internal/panics",
		"endpoint/internal/settle", "endpoint/internal/work", "header", "internal/backoff", "internal/copies", "internal/errtree",
		"internal/envelope", "internal/pump", "internal/uuid", "pipeline", "recoverability", "transport",
	}},
	{of: "endpoint/internal/quarantine", ours: []string{
		"endpoint/internal/names", "endpoint/internal/notify", "endpoint/internal/settle", "internal/backoff", "internal/copies",
		"internal/fault", "internal/pump", "recoverability", "transport",
	}},
	{of: "endpoint/internal/recovery", ours: []string{
		"endpoint/internal/audit", "endpoint/internal/held", "endpoint/internal/names", "endpoint/internal/notify",
		"endpoint/internal/overdue", "endpoint/internal/panics", "endpoint/internal/quarantine", "endpoint/internal/settle",
		"endpoint/internal/work", "header", "internal/backoff", "internal/copies", "internal/errtree", "internal/fault",
		"pipeline", "recoverability", "resilience", "transport",
	}},
	{of: "endpoint/internal/process", ours: []string{
		"endpoint/internal/audit", "endpoint/internal/inbox", "endpoint/internal/keylock", "endpoint/internal/notify",
		"endpoint/internal/outage", "endpoint/internal/outbox", "endpoint/internal/overdue", "endpoint/internal/panics",
		"endpoint/internal/quarantine", "endpoint/internal/recovery", "endpoint/internal/settle", "endpoint/internal/throttle",
		"endpoint/internal/typelimit", "endpoint/internal/work", "header", "internal/backoff", "internal/copies",
		"internal/errtree", "internal/fault", "internal/pump", "pipeline", "recoverability", "transport",
	}},
	{of: "endpoint/internal/*", ours: []string{"header", "internal/*", "pipeline", "recoverability", "transport"}},
	{of: "endpoint/health", ours: aboveEndpoint},
	{of: "saga", ours: append([]string{"internal/jsonloss", "internal/jsonmembers", "internal/stateful", "internal/strictjson", "internal/uuid", "recoverability"}, aboveEndpoint...)},
	{of: "schedule", ours: append([]string{"internal/*", "recoverability", "saga", "schedule/internal/*"}, aboveEndpoint...)},
	{of: "servicecontrol", ours: append([]string{"internal/safelog", "recoverability", "saga"}, aboveEndpoint...)},
	{
		of: "telemetry/otel", ours: append([]string{"internal/errtree", "internal/fault", "recoverability", "resilience", "saga"}, aboveEndpoint...),
		modules: []string{"go.opentelemetry.io/otel"},
	},
	{of: "telemetry/zaplog", ours: aboveEndpoint, modules: []string{"go.uber.org/zap"}},

	{of: "transport/inmemory", ours: belowDriver},
	{of: "transport/sqlite", ours: belowDriver, modules: []string{"modernc.org/sqlite"}},
	{of: "transport/rabbitmq", ours: belowDriver, modules: []string{"github.com/rabbitmq/amqp091-go"}},
	{of: "transport/asb", ours: belowDriver, modules: []string{"github.com/Azure/azure-sdk-for-go", "github.com/Azure/go-amqp"}},
	{of: "transport/sqs", ours: belowDriver, modules: []string{
		"github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go",
	}},
	{of: "transport/postgres", ours: belowDriver, modules: []string{"github.com/jackc/pgx/v5"}},
	{of: "transport/sqlserver", ours: belowDriver, modules: []string{"github.com/microsoft/go-mssqldb"}},
	{of: "resilience/failsafe", ours: []string{"resilience"}, modules: []string{"github.com/failsafe-go/failsafe-go"}},

	{of: "transport/transporttest", ours: []string{"header", "internal/pump", "transport"}, tests: true},
	{of: "endpoint/endpointtest", ours: append([]string{"recoverability", "serialization", "transport/inmemory"}, aboveEndpoint...), tests: true},
	{of: "resilience/resiliencetest", ours: []string{"resilience"}, tests: true},

	{of: "bench/*", free: true},
	{of: "cmd/*", free: true},
	{of: "drivertests", free: true, tests: true},
	{of: "examples/*", free: true},
	{of: "scripts/*", free: true},
}

var (
	belowDriver   = []string{"delayeddelivery", "header", "internal/*", "transport"}
	aboveEndpoint = []string{"endpoint", "header", "pipeline", "transport"}
)

// pkg is what go list says of a package: its imports are those of its code, not its tests.
type pkg struct {
	Dir, ImportPath string
	Imports         []string
}

func TestPackagesImportWhatTheyMay(t *testing.T) {
	for _, p := range packages(t) {
		for _, violation := range check(p) {
			t.Error(violation)
		}
	}
}

func TestForbiddenImportsAreFound(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     string // empty when it is allowed
	}{
		{"transport", "header", ""},
		{"header", "transport", "header must not import transport"},
		{"endpoint", "internal/pump", ""},
		{"endpoint", "transport/rabbitmq", "endpoint must not import transport/rabbitmq"},
		{"endpoint", "internal/brokertest", "endpoint must not import internal/brokertest: that is for tests"},
		{"transport/rabbitmq", "internal/backoff", ""},
		{"transport/rabbitmq", "endpoint", "transport/rabbitmq must not import endpoint"},
		{"transport/rabbitmq", "transport/inmemory", "transport/rabbitmq must not import transport/inmemory"},
		{"pipeline", "cmd/holdfast", "pipeline must not import cmd/holdfast"},
		{"endpoint", "transport/transporttest", "endpoint must not import transport/transporttest: that is for tests"},
		{"cmd/holdfast", "transport/rabbitmq", ""},
		{"cmd/holdfast", "cmd/holdfast/internal/demo", ""},
		{"cmd/holdfast/internal/demo", "endpoint", ""},
		{"endpoint", "cmd/holdfast/internal/demo", "endpoint must not import cmd/holdfast/internal/demo"},
		{"cmd/holdfast", "examples/hello", "cmd/holdfast must not import examples/hello"},
		{"cmd/holdfast", "transport/transporttest", "cmd/holdfast must not import transport/transporttest: that is for tests"},
		{"endpoint", "", "endpoint must not import ."},
		{"novelty", "header", "novelty has no rule: add one to deps_test.go"},
	} {
		to := strings.TrimSuffix(module+"/"+test.to, "/")
		found(t, pkg{ImportPath: module + "/" + test.from, Imports: []string{to}}, test.want)
	}
}

func TestForbiddenModulesAreFound(t *testing.T) {
	for _, test := range []struct{ from, to, want string }{
		{"endpoint", "net/http", ""},
		{"endpoint", "golang.org/x/sync/errgroup", "endpoint must not import golang.org/x/sync/errgroup"},
		{"transport/postgres", "github.com/jackc/pgx/v5/pgconn", ""},
		{"transport/postgres", "github.com/jackc/pgx/v5", ""},
		{"transport/postgres", "github.com/jackc/pgx/v50", "transport/postgres must not import github.com/jackc/pgx/v50"},
		{"transport/postgres", "github.com/microsoft/go-mssqldb", "transport/postgres must not import github.com/microsoft/go-mssqldb"},
		{"transport/sqlserver", "github.com/jackc/pgx/v5", "transport/sqlserver must not import github.com/jackc/pgx/v5"},
		{"transport/rabbitmq", "github.com/jackc/pgx/v5", "transport/rabbitmq must not import github.com/jackc/pgx/v5"},
		{"cmd/holdfast", "github.com/spf13/cobra", ""},
	} {
		found(t, pkg{ImportPath: module + "/" + test.from, Imports: []string{test.to}}, test.want)
	}
}

func found(t *testing.T, p pkg, want string) {
	t.Helper()
	if got := strings.Join(check(p), "\n"); got != want {
		t.Errorf("%v:\n%s", p, cmp.Diff(want, got))
	}
}

// check is a line for each import that p must not have.
func check(p pkg) (violations []string) {
	from := relative(p.ImportPath)
	r, ok := ruleOf(from)
	if !ok {
		return []string{from + " has no rule: add one to deps_test.go"}
	}
	for _, path := range p.Imports {
		if v := r.violation(from, path); v != "" {
			violations = append(violations, from+" must not import "+v)
		}
	}
	return violations
}

func (r rule) violation(from, path string) string {
	if !isOurs(path) {
		if isStandard(path) || r.free || slices.ContainsFunc(r.modules, func(m string) bool {
			return path == m || strings.HasPrefix(path, m+"/")
		}) {
			return ""
		}
		return path
	}
	to := relative(path)
	target, _ := ruleOf(to)
	switch {
	case target.tests:
		return to + ": that is for tests"
	case to == "." || target.free && program(to) != program(from):
		return to
	case r.free || slices.ContainsFunc(r.ours, func(pattern string) bool { return fits(to, pattern) }):
		return ""
	}
	return to
}

func ruleOf(path string) (rule, bool) {
	for _, r := range rules {
		if fits(path, r.of) {
			return r, true
		}
	}
	return rule{}, false
}

// program is the folder of the command or example that a free package is part of.
func program(path string) string {
	parts := strings.SplitN(path, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

func fits(path, pattern string) bool {
	if above, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, above)
	}
	return path == pattern
}

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// isStandard tells by the first element: only a module's has a dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func relative(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// packages returns the packages of all modules.
func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// listed runs go list once for all tests, because it takes seconds.
var listed = sync.OnceValues(func() (all []pkg, err error) {
	out, err := exec.Command("go", "list", "-json=Dir,ImportPath,Imports", module+"/...").Output()
	if err != nil {
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w\n%s", err, failed.Stderr)
		}
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		switch {
		case errors.Is(err, io.EOF) && len(all) == 0:
			return nil, errors.New("go list found no packages")
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
})
