package main

func Example() {
	main()
	// Output:
	// order 4711 is shipped to Ada
	// order 4712 is cancelled: it was not paid
}
