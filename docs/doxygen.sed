# What Doxygen 1.9.4 reads instead of valid C++ that it misreads.
# A nested inline namespace:
s/^namespace kvcache \{ inline namespace KVCACHE_ABI \{/namespace kvcache {/
s/^\}(\}+ \/\/ namespace kvcache)/\1/
# A requires clause after the parameters of a member function:
s/\) (const )?requires [^{]*\{/) \1{/
# The usual form of a class template has the documentation of the template:
s/^using ([a-z_0-9]+) = basic_\1<[^;]*>;$/& \/\/\/< @copydoc basic_\1/
