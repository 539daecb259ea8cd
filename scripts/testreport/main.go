// Command testreport reads the events of go test -json that gotestsum has recorded.
//
//	testreport result [-repeat 'make test'] FILE
//	testreport packages FILE
//
// result prints the failed tests with their output and the command that repeats each, the tests
// that failed and then passed, and "N passed, N failed". packages prints the elapsed time of each
// package, the longest first.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("what to print is missing: result or packages")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	repeat := flags.String("repeat", "make test", "command that runs tests of PKG and RUN")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("the file of events is missing")
	}
	file, err := os.Open(flags.Arg(0))
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only read
	r, err := read(file)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	switch args[0] {
	case "result":
		r.result(out, *repeat, flags.Arg(0))
	case "packages":
		r.times(out)
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
	return out.Flush()
}
