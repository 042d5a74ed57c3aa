// carat <command>
int main() { return 0; }
