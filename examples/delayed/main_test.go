package main

func Example() {
	main()
	// Output:
	// order 4711 is paid: its reminder is cancelled
	// order 4712 is not paid yet
}
