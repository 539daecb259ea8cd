// Command house compares the structure of the code with its bars: types with many methods, types
// and references that are spread over many files, long files, long lines, and pronouns in
// comments.
//
//	house check [-debts FILE] PACKAGES   fails if a figure is over its bar and over the debt of FILE
//	house update [-debts FILE] PACKAGES  writes the figures that are over their bars to FILE
//	house list [-debts FILE] PACKAGES    prints all figures
//
// A debt is a figure that was over its bar when the bar was made. A debt may fall and never rises.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("the first argument is check, update or list")
	}
	flags := flag.NewFlagSet("house", flag.ContinueOnError)
	file := flags.String("debts", "scripts/house.txt", "the `file` of the debts")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	packages, err := load(flags.Args())
	if err != nil {
		return err
	}
	var figures []figure
	for _, p := range packages {
		figures = append(figures, p.figures()...)
	}
	switch args[0] {
	case "check":
		debts, err := readDebts(*file)
		if err != nil {
			return err
		}
		return check(figures, debts, out)
	case "update":
		return writeDebts(*file, figures)
	case "list":
		for _, f := range figures {
			fmt.Fprintln(out, f)
		}
		return nil
	default:
		return fmt.Errorf("%q is not check, update or list", args[0])
	}
}
