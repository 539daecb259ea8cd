package main

import (
	"os"
	"testing"
)

// The example starts this binary again as its workers.
func TestMain(m *testing.M) {
	if os.Getenv("WORKER") != "" {
		main()
		return
	}
	m.Run()
}

func Example() {
	main()
	// Output:
	// attempt 1: huge.csv takes all memory there is
	// attempt 2: huge.csv takes all memory there is
	// attempt 3: huge.csv takes all memory there is
	// attempt 4: delivered too often: it may kill the process: move to error queue "error"
}
