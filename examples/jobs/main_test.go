package main

func Example() {
	main()
	// Output:
	// invoice 4711: attempt 1 is refused
	// invoice 4711: attempt 2 is refused
	// invoice 4711: attempt 3 is sent
	// the job of order 4711: Succeeded after 3 attempts of 5
	// a report of schedule "reports"
}
