package main

func Example() {
	main()
	// Unordered output:
	// billing: order 4711 costs 1999 cents
	// audit: something happened to order 4711
	// audit: something happened to order 4712
}
