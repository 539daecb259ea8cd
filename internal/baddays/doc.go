// Package baddays holds the gauntlet: tests that put an endpoint on a real broker through the
// faults that docs/bad-days.md lists. It contains tests only.
//
// Each broker has one table of bad days, in a file named after the broker. A day reports three
// facts: what happened to the bad message, what happened to its neighbours, and how long the
// endpoint needed until it worked normally again.
//
// The tests run twice. "make test" runs the days in short form. "make test-faults" sets
// HOLDFAST_FAULTS=1, which runs the days that are marked long as well, and all days at full size.
package baddays
