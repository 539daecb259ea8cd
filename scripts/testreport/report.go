package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

const (
	// linesPerTest bounds what is printed of a failed test.
	linesPerTest = 200
	// linesPerTry bounds what is printed of a failure that a later try made good.
	linesPerTry = 20
)

// report has the runs of each package: the first, and a further run for each repetition of a failed
// test.
type report struct {
	packages map[string][]*pkgRun
	order    []string         // of packages
	builds   map[string]*text // output of compilers, by import path
}

// pkgRun is a run of a test binary.
type pkgRun struct {
	output      text
	tests       map[string]*test
	order       []string
	elapsed     float64 // seconds
	ended       bool
	failed      bool
	failedBuild string
}

type test struct {
	output text
	parent bool   // has subtests
	blamed bool   // a subtest failed
	result string // pass, skip or fail; empty if the test did not end
}

// failure is what is printed of a test, or of a package if test is empty.
type failure struct {
	pkg, test, note string
	output          *text
}

// read reads events until the end of in.
func read(in io.Reader) (*report, error) {
	r := &report{packages: map[string][]*pkgRun{}, builds: map[string]*text{}}
	return r, eachLine(in, func(line []byte) error {
		if e, ok := parse(line); ok {
			r.event(e)
		}
		return nil
	})
}

func (r *report) event(e event) {
	switch {
	case e.Action == "build-output":
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = &text{}
		}
		r.builds[e.ImportPath].add(e.Output)
	case e.Package == "":
	case e.Test == "":
		r.runOf(e.Package).event(e)
	default:
		r.runOf(e.Package).testEvent(e)
	}
}

// runOf returns the run that an event of a package belongs to.
func (r *report) runOf(pkg string) *pkgRun {
	runs := r.packages[pkg]
	if runs == nil {
		r.order = append(r.order, pkg)
	}
	if len(runs) == 0 || runs[len(runs)-1].ended {
		runs = append(runs, &pkgRun{tests: map[string]*test{}})
		r.packages[pkg] = runs
	}
	return runs[len(runs)-1]
}

func (p *pkgRun) event(e event) {
	switch e.Action {
	case "output":
		p.output.add(e.Output)
	case "pass", "skip", "fail":
		p.elapsed, p.ended, p.failed, p.failedBuild = e.Elapsed, true, e.Action == "fail", e.FailedBuild
	}
}

func (p *pkgRun) testEvent(e event) {
	t := p.tests[e.Test]
	if t == nil {
		t = &test{}
		p.tests[e.Test] = t
		p.order = append(p.order, e.Test)
		if name, ok := parent(e.Test); ok && p.tests[name] != nil {
			p.tests[name].parent = true
		}
	}
	switch e.Action {
	case "output":
		t.output.add(e.Output)
	case "pass", "skip":
		t.result, t.output = e.Action, text{}
	case "fail":
		t.result = e.Action
		for name, ok := parent(e.Test); ok; name, ok = parent(name) {
			if p.tests[name] != nil {
				p.tests[name].blamed = true
			}
		}
	}
}

// failures returns the tests that failed in the run or did not end, and the package itself if the
// run failed by no test or was broken off.
func (p *pkgRun) failures(pkg string, builds map[string]*text) (all []failure) {
	if p.ended && !p.failed {
		return nil
	}
	brokenOff := !p.ended
	for _, name := range p.order {
		switch t := p.tests[name]; {
		case t.result == "fail" && (!t.blamed || t.output.says()):
			all = append(all, failure{pkg, name, "", &t.output})
		case t.result == "" && (!t.parent || t.output.says()):
			all = append(all, failure{pkg, name, "did not end", &t.output})
			brokenOff = true
		}
	}
	output, note := &p.output, ""
	if built := builds[p.failedBuild]; built != nil {
		output, note = built, "does not compile"
	}
	if len(all) == 0 || brokenOff && output.says() {
		all = append(all, failure{pkg, "", note, output})
	}
	return all
}

// outcome divides the failures of a package: a test that passed in a later run was unsteady, and
// the others stay failures. Of a test that failed in several runs only the last failure counts.
func outcome(pkg string, runs []*pkgRun, builds map[string]*text) (failed, unsteady []failure) {
	last := map[string]failure{}
	var order []string
	for i, run := range runs {
		for _, f := range run.failures(pkg, builds) {
			if f.test == "" && i > 0 {
				continue // the tests of the run are reported
			}
			if _, known := last[f.test]; !known {
				order = append(order, f.test)
			}
			last[f.test] = f
		}
	}
	for _, name := range order {
		if result(runs, name) == "pass" {
			unsteady = append(unsteady, last[name])
		} else {
			failed = append(failed, last[name])
		}
	}
	return failed, unsteady
}

// result returns the result of a test in its last run.
func result(runs []*pkgRun, name string) string {
	for _, run := range slices.Backward(runs) {
		if t := run.tests[name]; t != nil {
			return t.result
		}
	}
	return ""
}

// result prints failures, unsteady tests and counts.
func (r *report) result(out io.Writer, repeat, recording string) {
	var failed, unsteady []failure
	passed, skipped := 0, 0
	for _, pkg := range r.order {
		runs := r.packages[pkg]
		f, u := outcome(pkg, runs, r.builds)
		failed, unsteady = append(failed, f...), append(unsteady, u...)
		for name, t := range runs[0].tests {
			if t.parent {
				continue // its subtests are counted
			}
			switch result(runs, name) {
			case "pass":
				passed++
			case "skip":
				skipped++
			}
		}
	}
	for _, f := range failed {
		fmt.Fprintf(out, "\n=== %s\n", f)
		f.output.print(out, linesPerTest, recording)
	}
	if len(failed) > 0 {
		fmt.Fprintf(out, "\nFailed, each with the command that repeats the test:\n")
	}
	for _, f := range failed {
		fmt.Fprintf(out, "%s\n    %s\n", f, command(repeat, f))
	}
	for _, f := range unsteady {
		fmt.Fprintf(out, "\nunsteady: %s\n    %s\n", f, command(repeat, f))
		f.output.print(out, linesPerTry, recording)
	}
	if skipped > 0 {
		fmt.Fprintf(out, "%d skipped\n", skipped)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, len(failed))
}

// times prints the elapsed time of the first run of each package.
func (r *report) times(out io.Writer) {
	order := slices.Clone(r.order)
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Compare(r.packages[b][0].elapsed, r.packages[a][0].elapsed)
	})
	for _, pkg := range order {
		if p := r.packages[pkg][0]; len(p.tests) > 0 {
			fmt.Fprintf(out, "%7.1f s  %s\n", p.elapsed, folder(pkg))
		}
	}
}

func (f failure) String() string {
	name := f.pkg
	if f.test != "" {
		name += " " + f.test
	}
	if f.note != "" {
		name += " (" + f.note + ")"
	}
	return name
}

// command returns the shell command that runs the failed test, or the failed package, alone.
func command(repeat string, f failure) string {
	command := repeat + " PKG=" + folder(f.pkg)
	if f.test == "" {
		return command
	}
	var pattern []string
	for part := range strings.SplitSeq(f.test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	return command + " RUN='" + strings.ReplaceAll(strings.Join(pattern, "/"), "'", `'\''`) + "'"
}

// text is output of a test: its first and its last lines.
type text struct {
	first, last []string
	omitted     int
	partial     bool // the last line has no end yet
}

func (t *text) add(output string) {
	for line := range strings.Lines(output) {
		if framing(line) {
			continue
		}
		line, ended := strings.CutSuffix(line, "\n")
		if t.partial {
			lines := &t.first
			if len(t.last) > 0 {
				lines = &t.last
			}
			(*lines)[len(*lines)-1] += line
		} else if len(t.first) < linesPerTest/2 {
			t.first = append(t.first, line)
		} else {
			if len(t.last) == linesPerTest/2 {
				t.last = t.last[1:]
				t.omitted++
			}
			t.last = append(t.last, line)
		}
		t.partial = !ended
	}
}

// framing reports whether a line says only that a test begins, waits or goes on.
func framing(line string) bool {
	for _, mark := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME "} {
		if strings.HasPrefix(line, mark) {
			return true
		}
	}
	return false
}

// says reports whether there is more than lines with a result.
func (t *text) says() bool {
	for _, line := range t.first {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "--- ") && line != "FAIL" && line != "PASS" &&
			!strings.HasPrefix(line, "FAIL\t") && !strings.HasPrefix(line, "ok  \t") &&
			!strings.HasPrefix(line, "exit status ") && !strings.HasPrefix(line, "coverage: ") {
			return true
		}
	}
	return false
}

// print prints the first and the last lines, most lines at most. Of fewer than linesPerTest only
// the last are printed.
func (t *text) print(out io.Writer, most int, recording string) {
	first, last, omitted := t.first, t.last, t.omitted
	if most < linesPerTest {
		all := slices.Concat(first, last)
		first, last = nil, all[max(0, len(all)-most):]
		omitted += len(all) - len(last)
	}
	for _, line := range first {
		fmt.Fprintln(out, line)
	}
	if omitted > 0 {
		fmt.Fprintf(out, "    … %d lines more, all are in %s …\n", omitted, recording)
	}
	for _, line := range last {
		fmt.Fprintln(out, line)
	}
}
