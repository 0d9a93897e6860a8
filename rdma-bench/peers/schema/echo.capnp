@0xb1e5a7d0c94f2e63;

# The service that is measured.
interface Echo {
  # Returns its argument.
  echo @0 (body :Data) -> (body :Data);
}
