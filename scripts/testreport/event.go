package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"
)

const library = "github.com/holdfast-go/holdfast"

// event is a line of go test -json, see go doc test2json.
type event struct {
	Time        time.Time
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// parse returns false for a line that is no event: go test passes some text through.
func parse(line []byte) (e event, ok bool) {
	if len(line) == 0 || line[0] != '{' {
		return event{}, false
	}
	err := json.Unmarshal(line, &e)
	return e, err == nil && e.Action != ""
}

// eachLine calls f with each line of r, of any length, without its end.
func eachLine(r io.Reader, f func(line []byte) error) error {
	buffered := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := buffered.ReadBytes('\n')
		if n := len(line); n > 0 {
			if line[n-1] == '\n' {
				line = line[:n-1]
			}
			if err := f(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// folder returns the folder of a package, from the root of the repository: each module lies in the
// folder of its name.
func folder(pkg string) string {
	rest, ok := strings.CutPrefix(pkg, library)
	if !ok {
		return pkg
	}
	return "." + rest
}

// parent returns the test that test is a subtest of.
func parent(test string) (string, bool) {
	i := strings.LastIndexByte(test, '/')
	if i < 0 {
		return "", false
	}
	return test[:i], true
}
