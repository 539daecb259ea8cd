package main

func Example() {
	main()
	// Output: order 4711 was charged, rows: 1
}
