package main

import (
	"strings"
	"testing"
)

// A failed test is printed with its output, at most 200 lines of it, and with the command that
// repeats it; what passed is not.
func TestReportShowsFailuresOnly(t *testing.T) {
	got := reportOf(t, `{"Action":"run","Package":"LIB/saga","Test":"TestA"}
{"Action":"run","Package":"LIB/saga","Test":"TestA/it's_one"}
{"Action":"output","Package":"LIB/saga","Test":"TestA/it's_one","Output":"=== RUN   TestA/it's_one\n"}
`+strings.Repeat(`{"Action":"output","Package":"LIB/saga","Test":"TestA/it's_one","Output":"wrong\n"}`+"\n", 1000)+
		`{"Action":"fail","Package":"LIB/saga","Test":"TestA/it's_one"}
{"Action":"output","Package":"LIB/saga","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"LIB/saga","Test":"TestA"}
{"Action":"run","Package":"LIB/saga","Test":"TestB"}
{"Action":"output","Package":"LIB/saga","Test":"TestB","Output":"all is well\n"}
{"Action":"pass","Package":"LIB/saga","Test":"TestB"}
{"Action":"run","Package":"LIB/saga","Test":"TestC"}
{"Action":"output","Package":"LIB/saga","Test":"TestC","Output":"panic: oh\n"}
{"Action":"output","Package":"LIB/saga","Output":"FAIL\n"}
{"Action":"fail","Package":"LIB/saga","Elapsed":1.5}
no event
{"Action":"build-output","ImportPath":"x [x.test]","Output":"x.go:1: undefined: y\n"}
{"Action":"fail","Package":"LIB","FailedBuild":"x [x.test]"}
`)
	for _, want := range []string{
		"… 800 lines more", "panic: oh\n", "x.go:1: undefined: y\n",
		"    make test PKG=./saga RUN='^TestA$/^it'\\''s_one$'\n", "    make test PKG=./saga RUN='^TestC$'\n",
		"TestC (did not end)\n", library + " (does not compile)\n    make test PKG=.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if lines := strings.Count(got, "wrong\n"); lines != linesPerTest {
		t.Errorf("%d lines of a failed test, want %d", lines, linesPerTest)
	}
	for _, unwanted := range []string{"well", "=== RUN", "RUN='^TestA$'\n", "unsteady"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("the report has %q", unwanted)
		}
	}
	if want := "\n1 passed, 3 failed\n"; !strings.HasSuffix(got, want) {
		t.Errorf("the report does not end with %q", want)
	}
}

// A test that failed and then passed is unsteady, with the last lines of its failure. A test that
// failed each time is not.
func TestReportNamesUnsteadyTests(t *testing.T) {
	got := reportOf(t, `{"Action":"run","Package":"LIB","Test":"TestA"}
{"Action":"run","Package":"LIB","Test":"TestA/one"}
`+strings.Repeat(`{"Action":"output","Package":"LIB","Test":"TestA/one","Output":"luck\n"}`+"\n", 30)+
		`{"Action":"fail","Package":"LIB","Test":"TestA/one"}
{"Action":"fail","Package":"LIB","Test":"TestA"}
{"Action":"run","Package":"LIB","Test":"TestB"}
{"Action":"output","Package":"LIB","Test":"TestB","Output":"first\n"}
{"Action":"fail","Package":"LIB","Test":"TestB"}
{"Action":"output","Package":"LIB","Output":"FAIL\n"}
{"Action":"fail","Package":"LIB"}
{"Action":"run","Package":"LIB","Test":"TestA"}
{"Action":"run","Package":"LIB","Test":"TestA/one"}
{"Action":"pass","Package":"LIB","Test":"TestA/one"}
{"Action":"pass","Package":"LIB","Test":"TestA"}
{"Action":"pass","Package":"LIB"}
{"Action":"run","Package":"LIB","Test":"TestB"}
{"Action":"output","Package":"LIB","Test":"TestB","Output":"second\n"}
{"Action":"fail","Package":"LIB","Test":"TestB"}
{"Action":"fail","Package":"LIB"}
`)
	if want := "\nunsteady: " + library + " TestA/one\n    make test PKG=. RUN='^TestA$/^one$'\n    … 10 lines more"; !strings.Contains(got, want) {
		t.Errorf("the report lacks %q", want)
	}
	if lines := strings.Count(got, "luck\n"); lines != linesPerTry {
		t.Errorf("%d lines of an unsteady test, want %d", lines, linesPerTry)
	}
	if strings.Contains(got, "first\n") || !strings.Contains(got, "second\n") {
		t.Error("the last failure of a test should be printed, and no other")
	}
	if want := "\n1 passed, 1 failed\n"; !strings.HasSuffix(got, want) {
		t.Errorf("the report does not end with %q", want)
	}
}

// reportOf returns the report of events, in which LIB stands for the path of the module.
func reportOf(t *testing.T, events string) string {
	t.Helper()
	r, err := read(strings.NewReader(strings.ReplaceAll(events, "LIB", library)))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r.result(&out, "make test", "test.json")
	if t.Failed() {
		t.Log(out.String())
	}
	return out.String()
}
